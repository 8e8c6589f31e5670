// Spreads the hellos that are said again and again to peers which do not answer: those of all
// sessions of an engine take turns within a rate, whatever the number of silent peers. The first
// hello to each peer waits for nobody.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/clock.h"

namespace taco::harp {

class CallPace {
 public:
  // When a hello of so many bytes may leave; its place in the line is taken.
  Time take(Time now, std::size_t bytes) {
    const Time turn = std::max(now, free_ - kAhead);
    free_ = std::max(free_, now) + static_cast<Duration>(bytes) * kSecond / kBytesASecond;
    return turn;
  }

  static constexpr std::int64_t kBytesASecond = 2'000'000;
  static constexpr std::int64_t kBytesAtOnce = 1'000'000;

 private:
  static constexpr Duration kAhead = kBytesAtOnce * kSecond / kBytesASecond;
  Time free_ = 0;  // when all that was taken so far has had its time
};

}  // namespace taco::harp
