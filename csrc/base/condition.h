// A condition that threads wait for under a mutex: std::condition_variable with wait() compiled in.
// GCC 12 gave that function alone a new symbol in libstdc++ (GLIBCXX_3.4.30), and a library that
// needs it is not loaded at all where libstdc++ is older.
#pragma once

#include <pthread.h>

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "base/clock.h"

namespace taco {

class Condition : private std::condition_variable {
 public:
  using std::condition_variable::notify_all;
  using std::condition_variable::notify_one;
  using std::condition_variable::wait_for;

  // As in std::condition_variable: lets go of the lock while it waits, and may return although
  // nobody has notified it.
  void wait(std::unique_lock<std::mutex>& lock) {
    pthread_cond_wait(native_handle(), lock.mutex()->native_handle());
  }

  template <typename Predicate>
  void wait(std::unique_lock<std::mutex>& lock, Predicate holds) {
    while (!holds()) wait(lock);
  }

  // False: it does not hold by `until` (kNever: there is no limit).
  template <typename Predicate>
  bool wait_until(std::unique_lock<std::mutex>& lock, Time until, Predicate holds) {
    while (!holds()) {
      if (until == kNever) {
        wait(lock);
        continue;
      }
      const Duration left = until - monotonic_now();
      if (left <= 0) return false;
      wait_for(lock, std::chrono::nanoseconds(left));
    }
    return true;
  }
};

}  // namespace taco
