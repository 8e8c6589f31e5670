// Waits for what another thread brings about. Test support.
#pragma once

#include <chrono>
#include <thread>

#include "base/clock.h"

namespace taco::testing {

// Whether `condition` has come to hold, at the latest after `limit`.
template <class Condition>
bool eventually(const Condition& condition, Duration limit = 10 * kSecond) {
  const Time end = monotonic_now() + limit;
  while (!condition()) {
    if (monotonic_now() >= end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace taco::testing
