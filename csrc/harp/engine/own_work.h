// How much of the time since the last turn the thread that drives has worked itself. The rest it
// was kept from working: by others who had its core, or because the machine stood still.
//
// Token holder only.
#pragma once

#include <time.h>

#include "base/clock.h"

namespace taco::harp {

class OwnWork {
 public:
  // A turn begins. The kernel is asked once in a while only, since that is a system call.
  void begin_turn(Time now) {
    if (thread_ == this_thread() && now - marked_at_ < kMarkEvery) return;
    thread_ = this_thread();
    marked_at_ = now;
    mark_ = worked();
  }
  // Since a turn that began a moment before the last one, at the earliest; 0 when another thread
  // has driven since.
  Duration since() const { return thread_ == this_thread() ? worked() - mark_ : 0; }

 private:
  static constexpr Duration kMarkEvery = kMillisecond;

  static const void* this_thread() {
    static thread_local const char here = 0;
    return &here;
  }
  static Duration worked() {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return time.tv_sec * kSecond + time.tv_nsec;
  }

  const void* thread_ = nullptr;
  Time marked_at_ = 0;
  Duration mark_ = 0;
};

}  // namespace taco::harp
