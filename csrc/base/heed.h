// A thread that waits inside the library has to heed something meanwhile: handlers of signals,
// where it is a program of Python's that waits. Whoever calls in from there makes a Heed; waits
// that may last ask it now and then, and end when it says so. It is the calling thread's alone:
// threads that made none, an engine's among them, are never held up by it.
#pragma once

#include <algorithm>
#include <functional>
#include <utility>

#include "base/clock.h"
#include "base/far_future.h"
#include "base/status.h"

namespace taco {

class Heed {
 public:
  // Goes unheeded so long at most.
  static constexpr Duration kEvery = 50 * kMillisecond;

  // This thread's, until it is gone; then the one before it. A failure that `ask` returns is why
  // the wait ends.
  explicit Heed(std::function<Status()> ask)
      : ask_(std::move(ask)), before_(std::exchange(here, this)) {}
  ~Heed() { here = before_; }
  Heed(const Heed&) = delete;
  Heed& operator=(const Heed&) = delete;

  static bool is_here() { return here != nullptr; }
  static Status ask() { return is_here() ? here->ask_() : Status(); }

 private:
  static inline thread_local Heed* here = nullptr;
  const std::function<Status()> ask_;
  Heed* const before_;
};

// wait(time) waits no longer than that, and returns whether all is as it should be; false before
// that time: it never will. Returns the same for `until`, or why this thread waits no longer.
template <class Wait>
Result<bool> wait_and_heed(Time until, const Wait& wait) {
  if (!Heed::is_here()) return wait(until);
  for (;;) {
    const Time next = std::min(until, later(monotonic_now(), Heed::kEvery));
    if (wait(next)) return true;
    const Time now = monotonic_now();
    if (now < next) return false;
    TACO_RETURN_IF_ERROR(Heed::ask());
    if (now >= until) return false;
  }
}

}  // namespace taco
