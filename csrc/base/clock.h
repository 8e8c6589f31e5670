// Time as the whole project sees it: signed nanoseconds on CLOCK_MONOTONIC. Protocol code never
// reads a clock; it is handed `now`, so that the simulator can hand it virtual time.
#pragma once

#include <time.h>

#include <cstdint>

namespace taco {

using Time = std::int64_t;      // a point, ns
using Duration = std::int64_t;  // a length, ns

inline constexpr Duration kMicrosecond = 1'000;
inline constexpr Duration kMillisecond = 1'000'000;
inline constexpr Duration kSecond = 1'000'000'000;
inline constexpr Time kNever = INT64_MAX;

inline Time monotonic_now() {
  timespec ts;
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return ts.tv_sec * kSecond + ts.tv_nsec;
}

}  // namespace taco
