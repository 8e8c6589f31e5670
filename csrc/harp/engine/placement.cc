#include "harp/engine/placement.h"

#include <algorithm>

namespace taco::harp {

namespace {

// A thread that may run on one core only is moved there at once, and stays when the others are
// allowed again.
bool move_to(int core, const cpu_set_t& allowed) {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(core, &one);
  if (sched_setaffinity(0, sizeof one, &one) != 0) return false;
  sched_setaffinity(0, sizeof allowed, &allowed);
  return true;
}

}  // namespace

int less_crowded_core(int own, std::span<const int> others, const cpu_set_t& allowed) {
  const auto drivers_on = [&](int core) { return std::count(others.begin(), others.end(), core); };
  int best = -1;
  auto fewest = drivers_on(own);  // the caller comes on top
  for (int step = 1; step < CPU_SETSIZE && fewest > 0; ++step) {
    const int core = (own + step) % CPU_SETSIZE;
    if (!CPU_ISSET(core, &allowed)) continue;
    if (const auto there = drivers_on(core); there < fewest) {
      best = core;
      fewest = there;
    }
  }
  return best;
}

int Placement::look(Time now, int own, std::span<const int> others) {
  int core = -1;
  cpu_set_t allowed;
  // Nobody to get away from, as where cores suffice: no system call.
  if (std::find(others.begin(), others.end(), own) != others.end() &&
      sched_getaffinity(0, sizeof allowed, &allowed) == 0) {
    core = less_crowded_core(own, others, allowed);
  }
  const bool moved = core >= 0 && move_to(core, allowed);
  pause_ = moved ? std::min(2 * pause_, kRarest) : std::max(pause_ / 2, kLook);
  next_look_ = now + pause_;
  return moved ? core : own;
}

}  // namespace taco::harp
