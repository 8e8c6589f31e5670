#include "harp/session/received_packets.h"

#include <algorithm>

namespace taco::harp {

bool ReceivedPackets::add(std::uint64_t number, Time now) {
  if (number <= floor_) return false;
  if (count_ > 0 && number == ranges_[0].last + 1) {  // the common case
    ranges_[0].last = number;
    largest_at_ = now;
    return true;
  }
  std::uint32_t at = 0;  // first range that does not lie wholly above `number`
  while (at < count_ && ranges_[at].first > number) ++at;
  if (at < count_ && number <= ranges_[at].last) return false;
  if (at == 0) largest_at_ = now;
  const bool joins_above = at > 0 && ranges_[at - 1].first == number + 1;
  const bool joins_below = at < count_ && ranges_[at].last + 1 == number;
  if (joins_above && joins_below) {
    ranges_[at - 1].first = ranges_[at].first;
    std::copy(ranges_.begin() + at + 1, ranges_.begin() + count_, ranges_.begin() + at);
    --count_;
  } else if (joins_above) {
    ranges_[at - 1].first = number;
  } else if (joins_below) {
    ranges_[at].last = number;
  } else {
    if (count_ == ranges_.size()) {
      if (at == count_) return false;  // older than everything we can remember
      --count_;
      floor_ = ranges_[count_].last;
    }
    std::copy_backward(ranges_.begin() + at, ranges_.begin() + count_,
                       ranges_.begin() + count_ + 1);
    ranges_[at] = {number, number};
    ++count_;
  }
  return true;
}

void ReceivedPackets::fill(wire::Ack& ack, Time now) const {
  ack.count = count_;
  std::copy(ranges_.begin(), ranges_.begin() + count_, ack.ranges.begin());
  ack.delay_us = static_cast<std::uint32_t>(
      std::clamp<Duration>((now - largest_at_) / kMicrosecond, 0, kSecond / kMicrosecond));
}

}  // namespace taco::harp
