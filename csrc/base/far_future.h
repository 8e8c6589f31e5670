// Times and lengths so far away that 64 bits of nanoseconds do not hold them: programs that want no
// timeout name centuries. Any thread.
#pragma once

#include "base/clock.h"

namespace taco {

// Both return kNever for whatever is beyond the range.
constexpr Duration from_milliseconds(std::int64_t count) {
  return count > kNever / kMillisecond ? kNever : count * kMillisecond;
}
// `length` is 0 or more.
constexpr Time later(Time point, Duration length) {
  return length > kNever - point ? kNever : point + length;
}

}  // namespace taco
