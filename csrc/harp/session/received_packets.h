// The packet numbers of one path that have arrived: tells duplicates from new packets and says what
// an acknowledgement must hold. Bounded: when there are too many gaps the oldest numbers are given
// up, which means they are refused as duplicates and, never acknowledged, come again under new
// ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "harp/session/wire.h"

namespace taco::harp {

class ReceivedPackets {
 public:
  // Whether the packet has been received, or is too old to tell.
  bool has(std::uint64_t number) const;
  // Adds a packet. False: it had been received, or is too old to tell.
  bool add(std::uint64_t number, Time now);
  // Adds as many as come next after the largest, which has just been added.
  void extend(std::uint32_t numbers) { ranges_[0].last += numbers; }
  // 0: nothing yet. Numbers start at 1.
  std::uint64_t largest() const { return ranges_.empty() ? 0 : ranges_[0].last; }
  bool has_gaps() const { return ranges_.size() > 1; }
  void fill(wire::Ack& ack, Time now) const;
  // Gives memory back that gaps have taken.
  void trim() { ranges_.shrink_to_fit(); }
  std::size_t memory_bytes() const { return ranges_.capacity() * sizeof(wire::AckRange); }

 private:
  std::vector<wire::AckRange> ranges_;  // descending; at most wire::kMaxAckRanges
  std::uint64_t floor_ = 0;             // numbers up to this one count as received
  Time largest_at_ = 0;
};

}  // namespace taco::harp
