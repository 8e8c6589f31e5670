// The datagrams of a super-packet, or of a single one, from the front.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

#include "harp/nic.h"

namespace taco::harp {

class Datagrams {
 public:
  explicit Datagrams(const RxPacket& packets)
      : rest_(packets.data),
        bytes_(packets.segment_bytes == 0 ? packets.data.size() : packets.segment_bytes) {}

  bool empty() const { return rest_.empty(); }
  std::span<std::byte> front() const { return rest_.first(std::min(bytes_, rest_.size())); }
  std::span<std::byte> take() {
    const std::span<std::byte> taken = front();
    rest_ = rest_.subspan(taken.size());
    return taken;
  }

 private:
  std::span<std::byte> rest_;
  std::size_t bytes_;  // of each; the last may have fewer
};

}  // namespace taco::harp
