#include "harp/session/received_packets.h"

#include <algorithm>

namespace taco::harp {

bool ReceivedPackets::has(std::uint64_t number) const {
  if (number <= floor_) return true;
  if (ranges_.empty() || number > ranges_[0].last) return false;  // the common case
  const auto below = std::find_if(ranges_.begin(), ranges_.end(), [&](const wire::AckRange& range) {
    return range.first <= number;
  });
  if (below != ranges_.end()) return number <= below->last;
  return ranges_.size() == wire::kMaxAckRanges && number + 1 < ranges_.back().first;
}

bool ReceivedPackets::add(std::uint64_t number, Time now) {
  if (number <= floor_) return false;
  if (!ranges_.empty() && number == ranges_[0].last + 1) {  // the common case
    ranges_[0].last = number;
    largest_at_ = now;
    return true;
  }
  std::size_t at = 0;  // first range that does not lie wholly above `number`
  while (at < ranges_.size() && ranges_[at].first > number) ++at;
  if (at < ranges_.size() && number <= ranges_[at].last) return false;
  if (at == 0) largest_at_ = now;
  const bool joins_above = at > 0 && ranges_[at - 1].first == number + 1;
  const bool joins_below = at < ranges_.size() && ranges_[at].last + 1 == number;
  if (joins_above && joins_below) {
    ranges_[at - 1].first = ranges_[at].first;
    ranges_.erase(ranges_.begin() + static_cast<std::ptrdiff_t>(at));
  } else if (joins_above) {
    ranges_[at - 1].first = number;
  } else if (joins_below) {
    ranges_[at].last = number;
  } else {
    if (ranges_.size() == wire::kMaxAckRanges) {
      if (at == ranges_.size()) return false;  // older than everything we can remember
      floor_ = ranges_.back().last;
      ranges_.pop_back();
    }
    ranges_.insert(ranges_.begin() + static_cast<std::ptrdiff_t>(at), {number, number});
  }
  return true;
}

void ReceivedPackets::fill(wire::Ack& ack, Time now) const {
  ack.count = static_cast<std::uint32_t>(ranges_.size());
  std::copy(ranges_.begin(), ranges_.end(), ack.ranges.begin());
  ack.delay_us = static_cast<std::uint32_t>(
      std::clamp<Duration>((now - largest_at_) / kMicrosecond, 0, kSecond / kMicrosecond));
  ack.arrived_us = static_cast<std::uint32_t>(largest_at_ / kMicrosecond);
}

}  // namespace taco::harp
