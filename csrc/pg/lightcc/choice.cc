#include "pg/lightcc/choice.h"

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>

namespace taco::pg::lightcc {
namespace {

using Loss = std::array<std::uint64_t, 2>;

constexpr std::array kAllWays = {Way::kExact, Way::kHalf, Way::kTopK};
constexpr std::size_t kMaxWork = 8192;  // states to keep over all buckets
constexpr double kNoLimit = std::numeric_limits<double>::infinity();

// How far processors, cable and the last bucket have come once some buckets are on their way.
struct Progress {
  double processor = 0, wire = 0, end = 0;

  // When the next one, ready at `ready`, has been averaged.
  double add(double ready, const Cost& cost) {
    processor = std::max(processor, ready) + cost.processor;
    wire = std::max(wire, ready) + cost.wire;
    // Besides what the slower of both does: latency, and filling the pipeline between them.
    const double rest = cost.seconds - std::max(cost.processor, cost.wire);
    const double over = std::max(processor, wire) + std::max(rest, 0.0);
    end = std::max(end, over);
    return over;
  }
};

Loss loss_of(const ReadyBucket& bucket, Way way) {
  return {way == Way::kTopK ? bucket.bytes : 0, way == Way::kHalf ? bucket.bytes : 0};
}

Loss sum(const Loss& a, const Loss& b) { return {a[0] + b[0], a[1] + b[1]}; }

// Goes through the buckets and keeps every combination of ways so far that may be part of the best
// whole: no other one is better in all that matters for what follows.
class Search {
 public:
  explicit Search(const StepModel& step)
      : step_(step),
        max_states_(std::clamp<std::size_t>(
            kMaxWork / std::max<std::size_t>(1, step.buckets.size()), 32, 256)) {}

  Ways fastest() {
    explore(kNoLimit, [](const State& state) { return state.progress.end; });
    return ways_of(*std::min_element(
        states_.begin(), states_.end(),
        [](const State& a, const State& b) { return a.progress.end < b.progress.end; }));
  }

  // The ways with the least loss among those that end by `limit`. Empty: none was found.
  Ways least_loss(double limit) {
    explore(limit, [](const State& state) { return state.loss; });
    if (states_.empty()) return {};
    return ways_of(
        *std::min_element(states_.begin(), states_.end(), [](const State& a, const State& b) {
          return std::tie(a.loss, a.progress.end) < std::tie(b.loss, b.progress.end);
        }));
  }

 private:
  struct State {
    Progress progress;
    Loss loss{};
    std::size_t last = 0;  // in history_
  };
  struct Entry {
    std::size_t before = 0;
    Way way = Way::kExact;
  };

  template <class First>
  void explore(double limit, First first) {
    slack_ = 0;
    history_.assign(1, {});
    states_.assign(1, {});
    for (const ReadyBucket& bucket : step_.buckets) {
      std::vector<State> next;
      for (const State& state : states_) {
        for (const Way way : kAllWays) {
          if (!bucket.allows(way)) continue;
          State after = state;
          after.progress.add(bucket.ready, bucket.cost(way));
          if (after.progress.end > limit) continue;
          after.loss = sum(state.loss, loss_of(bucket, way));
          after.last = history_.size();
          history_.push_back({state.last, way});
          next.push_back(after);
        }
      }
      states_ = std::move(next);
      thin(first);
    }
  }

  // Where many are left, those count as equal that keep processors and cable busy for nearly as
  // long.
  template <class First>
  void thin(First first) {
    if (states_.empty()) return;
    drop_beaten(first, slack_);
    const double span = states_.back().progress.end - step_.buckets.front().ready;
    while (states_.size() > max_states_ && span > 0) {
      slack_ = slack_ == 0 ? span / 16384 : 2 * slack_;
      drop_beaten(first, slack_);
    }
  }

  template <class First>
  void drop_beaten(First first, double slack) {
    std::sort(states_.begin(), states_.end(), [&](const State& a, const State& b) {
      const auto key = [&](const State& state) {
        return std::make_tuple(first(state), state.progress.processor, state.progress.wire,
                               state.progress.end);
      };
      return key(a) < key(b);
    });
    std::map<double, double> front;  // the least wire of all kept with at most that processor
    std::erase_if(states_, [&](const State& state) {
      const double processor = state.progress.processor, wire = state.progress.wire;
      const auto after = front.upper_bound(processor + slack);
      if (after != front.begin() && std::prev(after)->second <= wire + slack) return true;
      auto beaten = front.insert_or_assign(processor, wire).first;
      for (++beaten; beaten != front.end() && beaten->second >= wire;) beaten = front.erase(beaten);
      return false;
    });
  }

  Ways ways_of(const State& state) const {
    Ways ways(step_.buckets.size());
    std::size_t entry = state.last;
    for (std::size_t i = ways.size(); i-- > 0; entry = history_[entry].before) {
      ways[i] = history_[entry].way;
    }
    return ways;
  }

  const StepModel& step_;
  const std::size_t max_states_;  // so that many buckets are no matter of seconds
  double slack_ = 0;
  std::vector<Entry> history_;
  std::vector<State> states_;
};

// The ways with the least loss among those within the tolerance of the fastest.
Ways least_lossy(const StepModel& step, const Ways& fastest, double tolerance) {
  const Ways found = Search(step).least_loss(seconds(step, fastest) * (1 + tolerance));
  // Times that count as equal in one search need not in the other.
  return found.empty() ? fastest : found;
}

}  // namespace

std::vector<double> ends(const StepModel& step, const Ways& ways) {
  std::vector<double> found;
  found.reserve(ways.size());
  Progress progress;
  for (std::size_t i = 0; i < ways.size(); ++i) {
    found.push_back(progress.add(step.buckets[i].ready, step.buckets[i].cost(ways[i])));
  }
  return found;
}

double seconds(const StepModel& step, const Ways& ways) {
  double latest = step.compute;
  for (const double end : ends(step, ways)) latest = std::max(latest, end);
  return latest;
}

double exposed(const StepModel& step, const Ways& ways) {
  return seconds(step, ways) - step.compute;
}

Ways all_by(const StepModel& step, Way way) {
  Ways ways;
  ways.reserve(step.buckets.size());
  for (const ReadyBucket& bucket : step.buckets) {
    ways.push_back(bucket.allows(way) ? way : Way::kExact);
  }
  return ways;
}

Loss loss(const StepModel& step, const Ways& ways) {
  Loss total{};
  for (std::size_t i = 0; i < ways.size(); ++i) {
    total = sum(total, loss_of(step.buckets[i], ways[i]));
  }
  return total;
}

Ways choose(const StepModel& step, double tolerance) {
  if (step.buckets.empty()) return {};
  return least_lossy(step, Search(step).fastest(), tolerance);
}

Ways reconsider(const StepModel& step, const Ways& now, const ChoiceRules& rules) {
  if (step.buckets.empty()) return {};
  const Ways fastest = Search(step).fastest();
  Ways other = least_lossy(step, fastest, rules.tolerance);
  if (seconds(step, other) < seconds(step, now) * (1 - rules.hysteresis)) return other;
  Ways safer = least_lossy(step, fastest, rules.tolerance / 2);
  return loss(step, safer) < loss(step, now) ? safer : now;
}

}  // namespace taco::pg::lightcc
