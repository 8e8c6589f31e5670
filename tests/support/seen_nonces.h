// The nonces that an observer of the simulated network has seen packets sealed under. AES-GCM gives
// away what it keeps when two are sealed under one. Test support.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <vector>

#include "support/sim_wire.h"

namespace taco::harp {

class SeenNonces {
 public:
  // False: other content was sealed under this packet's nonce before. The same may leave again, in
  // part or whole.
  bool add(const SimNetwork::Departure& sent) {
    wire::Header header;
    if (sent.fate == "forged" || sent.bytes.size() <= sizeof header) return true;
    std::memcpy(&header, sent.bytes.data(), sizeof header);
    if ((header.flags & wire::kSealed) == 0) return true;
    in_part_ += sent.fate == "in part" ? 1 : 0;
    Nonce nonce{};
    std::memcpy(nonce.data(), &header.connection, sizeof header.connection);
    std::memcpy(nonce.data() + 8, &header.number, sizeof header.number);
    nonce[12] = static_cast<std::byte>(header.path);
    nonce[13] = static_cast<std::byte>(header.sealed_with);
    nonce[14] = static_cast<std::byte>(header.flags & wire::kUncounted);
    const auto body = sent.bytes.subspan(sizeof header);
    const auto kept = body.first(std::min(body.size(), kKept));
    const auto [before, is_new] = seen_.emplace(nonce, Datagram(kept.begin(), kept.end()));
    const auto both = std::min(kept.size(), before->second.size());
    return is_new || std::equal(kept.begin(), kept.begin() + static_cast<std::ptrdiff_t>(both),
                                before->second.begin());
  }

  std::uint64_t in_part() const { return in_part_; }  // of those, refused after a part had left

 private:
  // The bytes by which nonces differ, and how many sealed bytes are kept of each packet.
  static constexpr std::size_t kNonceBytes = 15, kKept = 64;
  using Nonce = std::array<std::byte, kNonceBytes>;
  std::map<Nonce, Datagram> seen_;
  std::uint64_t in_part_ = 0;
};

}  // namespace taco::harp
