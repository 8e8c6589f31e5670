// Which packet numbers of one path have arrived: tells duplicates from new packets and says what an
// acknowledgement must hold. Bounded: when there are too many gaps the oldest numbers are given up,
// which means they are refused as duplicates and, never acknowledged, come again under new ones.
#pragma once

#include <array>
#include <cstdint>

#include "base/clock.h"
#include "harp/session/wire.h"

namespace taco::harp {

class ReceivedPackets {
 public:
  // False: it had been received, or is too old to tell.
  bool add(std::uint64_t number, Time now);
  // 0: nothing yet. Numbers start at 1.
  std::uint64_t largest() const { return count_ == 0 ? 0 : ranges_[0].last; }
  bool has_gaps() const { return count_ > 1; }
  void fill(wire::Ack& ack, Time now) const;

 private:
  std::array<wire::AckRange, wire::kMaxAckRanges> ranges_;  // descending
  std::uint32_t count_ = 0;
  std::uint64_t floor_ = 0;  // numbers up to this one count as received
  Time largest_at_ = 0;
};

}  // namespace taco::harp
