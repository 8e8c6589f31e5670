// The choice of the core that a driving caller runs on, where the ranks of a host are no fewer than
// its cores.
//
// A driver that waits for its peers polls, giving its core away between looks, and so never looks
// idle to the scheduler: three of four ranks stay on one of two cores for seconds, while the
// fourth, alone on the other, polls for them. So drivers tell each other their cores through shared
// memory, and one that sees a core with at least two drivers fewer than its own moves there. It
// stays within the affinity its thread has, and leaves that as it was: the scheduler may move it
// again.
//
// Needs the ownership token, but for the free function.
#pragma once

#include <sched.h>

#include <span>

#include "base/clock.h"

namespace taco::harp {

// The core of `allowed` next after `own` with the fewest drivers, when that makes both cores' loads
// differ less; else -1. `others` are the cores of the other drivers, negative for one that sleeps.
int less_crowded_core(int own, std::span<const int> others, const cpu_set_t& allowed);

class Placement {
 public:
  static constexpr Duration kLook = kMillisecond;         // how often it is worth a look
  static constexpr Duration kRarest = 64 * kMillisecond;  // while the scheduler disagrees

  bool is_due(Time now) const { return now >= next_look_; }
  // The calling thread runs on core `own`. Moves it if that makes room; returns where it runs now.
  int look(Time now, int own, std::span<const int> others);

 private:
  Time next_look_ = 0;
  // Twice as long after each move, half as long after each look that found no reason for one: where
  // something else keeps the better core busy, the scheduler moves the thread back, and has the
  // last word.
  Duration pause_ = kLook;
};

}  // namespace taco::harp
