// A number that takes a system call or a device's registers to ask for, and is wanted more often
// than it matters: statistics look at it at every idle poll, and are published every 100 ms.
//
// Any thread.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/clock.h"

namespace taco::harp {

class SlowCount {
 public:
  static constexpr Duration kEvery = 50 * kMillisecond;

  // The answer of `ask`, or what it was less than kEvery ago.
  template <class Ask>
  std::uint64_t get(Time now, const Ask& ask) {
    if (now < ask_again_.load(std::memory_order_acquire)) {
      return latest_.load(std::memory_order_relaxed);
    }
    const std::uint64_t asked = ask();
    latest_.store(asked, std::memory_order_relaxed);
    ask_again_.store(now + kEvery, std::memory_order_release);
    return asked;
  }

 private:
  std::atomic<std::uint64_t> latest_{0};
  std::atomic<Time> ask_again_{0};
};

}  // namespace taco::harp
