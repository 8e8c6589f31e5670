// The last few small packets of a path, by number and checksum (0 of those that are sealed): a
// reset counts only if it quotes one of them. What a dead peer is sent last are always such
// packets: the probes for it.
#pragma once

#include <array>
#include <cstdint>

#include "harp/session/wire.h"

namespace taco::harp {

class RecentPackets {
 public:
  void add(const wire::Header& header) {
    sent_[next_] = {header.number, header.crc};
    next_ = (next_ + 1) % sent_.size();
  }
  // The checksum covers the header's other fields. A sealed packet's names the connection, which
  // nobody can guess.
  bool contains(const wire::Header& header) const {
    if (header.number == 0) return false;
    for (const Sent& sent : sent_) {
      if (sent.number == header.number && sent.crc == header.crc) return true;
    }
    return false;
  }

 private:
  struct Sent {
    std::uint32_t number, crc;
  };
  std::array<Sent, 8> sent_{};
  std::size_t next_ = 0;
};

}  // namespace taco::harp
