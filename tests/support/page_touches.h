// A program as the pages of one memory that each of its operators touches, and the least that it
// costs, found by trying everything. Test support.
#pragma once

#include <algorithm>
#include <bit>
#include <map>
#include <utility>
#include <vector>

namespace taco::testing {

struct Touch {
  int page;
  bool writes;
};
using Program = std::vector<std::vector<Touch>>;  // operator by operator

inline Program repeated(const Program& program, int times) {
  Program all;
  for (int i = 0; i < times; ++i) all.insert(all.end(), program.begin(), program.end());
  return all;
}

// Everything tried: after each operator, every set of pages that may be there and of those that are
// dirty, with the least cost of getting there.
inline double min_cost_by_trying(const Program& program, int pages, int frames) {
  using State = std::pair<unsigned, unsigned>;  // there, dirty
  std::map<State, double> states;
  for (unsigned there = 0; there < 1u << pages; ++there) {
    if (std::popcount(there) <= frames) states[{there, 0}] = 0;
  }
  for (const std::vector<Touch>& touches : program) {
    unsigned needed = 0, written = 0;
    for (const Touch& touch : touches) {
      needed |= 1u << touch.page;
      if (touch.writes) written |= 1u << touch.page;
    }
    std::map<State, double> next;
    for (const auto& [state, cost] : states) {
      const auto [there, dirty] = state;
      const unsigned others = there & ~needed;
      for (unsigned kept = others;; kept = (kept - 1) & others) {
        const unsigned now = kept | needed;
        if (std::popcount(now) <= frames) {
          const unsigned gone = there & ~now, fetched = needed & ~there;
          const double more = std::popcount(fetched) + std::popcount(gone & dirty);
          const State after{now, (dirty & now) | written};
          const auto [at, fresh] = next.try_emplace(after, cost + more);
          if (!fresh) at->second = std::min(at->second, cost + more);
        }
        if (kept == 0) break;
      }
    }
    states = std::move(next);
  }
  double best = 1e18;
  for (const auto& [state, cost] : states) best = std::min(best, cost);
  return best;
}

}  // namespace taco::testing
