// The cost of very many idle sessions to their engine: to leave a wait(), which asks whether
// anything is under way, and an address of the host's that goes or comes back, of which each is
// told.
//
//   sessions_bench [--sessions N] [--json]
//
// The engine is the one that runs in production; its network is memory, its peers are silent, and
// routes are looked up in memory, too. Processor time, the median of 21 waits and of 10 changes;
// and of the longest turn of each change, for which others wait.
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "support/many_sessions.h"

namespace {

using namespace taco;        // a program, not a library
using namespace taco::harp;  // NOLINT(google-build-using-namespace)

double processor_seconds() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

template <class Work>
double seconds_of(const Work& work) {
  const double begin = processor_seconds();
  work();
  return processor_seconds() - begin;
}

double median(std::vector<double> all) {
  std::ranges::sort(all);
  return all[all.size() / 2];
}

struct Figures {
  double leave = 0, change = 0, turn = 0;
};

Figures measure(ManySessions& all) {
  constexpr int kAsks = 1'000;
  WireHost& hub = all.hub();
  const auto ask = [&] {
    for (int i = 0; i < kAsks; ++i) {
      if (hub.loop.has_open_requests_st() || !hub.loop.is_quiet_st()) std::abort();
    }
  };
  std::vector<double> leaves, changes, turns;
  for (int i = 0; i < 21; ++i) leaves.push_back(seconds_of(ask) / kAsks);
  for (int i = 0; i < 10; ++i) {
    hub.nic.missing ^= 1;
    double longest = 0;
    bool worked = true;
    changes.push_back(seconds_of([&] {
      while (worked) longest = std::max(longest, seconds_of([&] { worked = hub.turn(all.now()); }));
    }));
    turns.push_back(longest);
  }
  return {median(leaves), median(changes), median(turns)};
}

}  // namespace

int main(int argc, char** argv) {
  std::uint32_t sessions = 10'000;
  bool json = false;
  for (int i = 1; i < argc; ++i) {
    if (strcmp(argv[i], "--json") == 0) {
      json = true;
    } else if (strcmp(argv[i], "--sessions") == 0 && i + 1 < argc) {
      sessions = static_cast<std::uint32_t>(std::max(1, atoi(argv[++i])));
    } else {
      fprintf(stderr, "sessions_bench [--sessions N] [--json]\n");
      return 2;
    }
  }
  ManySessions all(sessions, 2);
  if (!all.all_connected()) {
    fprintf(stderr, "not all sessions came about\n");
    return 1;
  }
  all.run(60 * kSecond);
  const Figures found = measure(all);
  const char* const format =
      json ? "{\"sessions\": %u, \"leave_s\": %.3g, \"change_s\": %.3g, \"turn_s\": %.3g}\n"
           : "%u idle sessions: leaving a wait() takes %.3g s, a change of addresses %.3g s, of "
             "which a turn %.3g s at most\n";
  printf(format, sessions, found.leave, found.change, found.turn);
  return 0;
}
