// The packets of a sequence that have come, as far as their numbers tell: each counts once, and one
// that is much older than the newest does not count at all. For packets that nobody acknowledges,
// of which a later one says all that an earlier one did.
//
// A pure value.
#pragma once

#include <cstdint>

namespace taco::harp {

class ReplayWindow {
 public:
  std::uint64_t largest() const { return largest_; }
  // False: it has come before, or is too old to tell.
  bool take(std::uint64_t number) {
    if (number > largest_) {
      const std::uint64_t ahead = number - largest_;
      seen_ = ahead < kWindow ? seen_ << ahead : 0;
      largest_ = number;
    }
    const std::uint64_t age = largest_ - number;
    if (age >= kWindow || (seen_ >> age & 1) != 0) return false;
    seen_ |= std::uint64_t{1} << age;
    return true;
  }

 private:
  static constexpr std::uint64_t kWindow = 64;
  std::uint64_t largest_ = 0;
  std::uint64_t seen_ = 0;  // bit i: largest_ - i has come
};

}  // namespace taco::harp
