#include "support/campaign_hostile.h"

#include <algorithm>
#include <span>
#include <utility>

namespace taco::harp {

void Hostile::see(const SimNetwork::Departure& sent) {
  if (sent.fate == "forged" || sent.fate == "in part" || sent.bytes.size() < sizeof(wire::Header))
    return;
  Seen seen{sent.from, sent.to, Datagram(sent.bytes.begin(), sent.bytes.end())};
  if (wire::is_hello(seen.bytes)) {
    if (hellos_.size() < kRemembered) hellos_.push_back(seen);
  } else if (old_.size() < kRemembered) {
    old_.push_back(seen);
  } else if (random_.chance(kKept)) {
    old_[random_.below(kRemembered)] = seen;
  }
  if (seen_.size() < kRemembered) {
    seen_.push_back(std::move(seen));
  } else {
    seen_[next_++ % kRemembered] = std::move(seen);
  }
}

SimPlace Hostile::anywhere() {
  return {static_cast<std::uint32_t>(random_.below(nodes_ + 1)),
          static_cast<std::uint32_t>(random_.below(4)), 0};
}

Datagram Hostile::nonsense() {
  Datagram bytes(1 + random_.below(1472));
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random_.next());
  return bytes;
}

// In form, with a checksum; for a connection that nobody has.
Datagram Hostile::with_any_header() {
  Datagram body(random_.below(200));
  for (std::byte& byte : body) byte = static_cast<std::byte>(random_.next());
  const wire::PacketId id{random_.next(), random_.next(),
                          static_cast<wire::PathId>(random_.below(16))};
  const auto type = static_cast<wire::Type>(1 + random_.below(6));
  return datagram_of(wire::frames_header(type, id, body.size()), body);
}

void Hostile::attack() {
  const std::size_t seen = seen_.empty() ? 0 : random_.below(seen_.size());
  const std::uint64_t kind = random_.below(seen_.empty() ? 2 : 6);
  const SimPlace to{static_cast<std::uint32_t>(random_.below(nodes_)),
                    static_cast<std::uint32_t>(random_.below(3)), 0};
  switch (kind) {
    case 0:
      return network_.forge(anywhere(), to, nonsense());
    case 1:
      return network_.forge(anywhere(), to, with_any_header());
    case 2:
      return forge_from(seen_[seen]);
    case 3:
      return send_reset(seen_[seen]);
    default:
      return replay(seen_[seen]);
  }
}

// A copy, from where the packet came or from elsewhere, to where it went or to elsewhere. A copy of
// a packet may have made another process than the peer quote it: such a reset, in the peer's name,
// is one that quotes a packet.
void Hostile::replay(const Seen& seen) {
  SimPlace from = random_.chance(0.5) ? seen.from : anywhere();
  if (!resets_ && wire::is_reset(seen.bytes)) from = seen.from;
  SimPlace to = seen.to;
  if (random_.chance(0.2)) to.node = static_cast<std::uint32_t>(random_.below(nodes_));
  network_.forge(from, to, seen.bytes);
}

bool Hostile::repeat(const std::vector<Seen>& from) {
  if (from.empty()) return false;
  replay(from[random_.below(from.size())]);
  return true;
}

// Altered: what is left of a packet has no right checksum; of a hello no right proof.
void Hostile::forge_from(const Seen& seen) {
  Datagram bytes = seen.bytes;
  switch (random_.below(4)) {
    case 0:
      bytes.resize(1 + random_.below(bytes.size()));
      break;
    case 1: {
      // For a payload that is left to UDP's checksum, any right checksum will do.
      const bool is_trusted = (header_of(bytes).flags & wire::kTrusted) != 0;
      const std::size_t end = is_trusted ? sizeof(wire::Header) : bytes.size();
      bytes[random_.below(end)] ^= static_cast<std::byte>(1 + random_.below(255));
      break;
    }
    case 2:  // another version
      bytes[0] = static_cast<std::byte>(random_.below(256));
      if ((static_cast<unsigned>(bytes[0]) >> 4) == wire::kVersion) bytes[0] ^= std::byte{0x30};
      break;
    default: {
      wire::Header header = header_of(bytes);
      std::span<const std::byte> body = std::span<const std::byte>(bytes).subspan(sizeof header);
      Datagram changed(body.begin(), body.end());
      if (!is_type(bytes, wire::Type::kHello)) {
        header.connection = random_.next();
      } else if (!changed.empty()) {
        const std::size_t end = std::min(changed.size(), sizeof(wire::Hello));
        changed[random_.below(end)] ^= static_cast<std::byte>(1 + random_.below(255));
      }
      bytes = datagram_of(header, changed);
    }
  }
  network_.forge(random_.chance(0.5) ? seen.from : anywhere(), seen.to, std::move(bytes));
}

// Control packets and eager messages, which are sealed at every level that seals anything; and
// segments, of which the header is masked where they are not.
bool Hostile::speak() {
  if (seen_.empty()) return false;
  const Seen& seen = seen_[random_.below(seen_.size())];
  const wire::Header known = header_of(seen.bytes);
  if (known.connection == 0) return false;
  if (is_type(seen.bytes, wire::Type::kData) || is_type(seen.bytes, wire::Type::kFragment)) {
    speak_segment(seen);
    return true;
  }
  Datagram body(random_.below(100));
  for (std::byte& byte : body) byte = static_cast<std::byte>(random_.below(8));
  const auto type = random_.chance(0.7) ? wire::Type::kControl : wire::Type::kEager;
  const wire::PacketId id{known.connection, known.number + random_.below(100), known.path};
  wire::Header header = wire::frames_header(type, id, body.size());
  if (random_.chance(0.3)) header.flags = wire::kUncounted;
  network_.forge(random_.chance(0.5) ? seen.from : anywhere(), seen.to, datagram_of(header, body));
  return true;
}

// With another number, place or message than the segment that was seen.
void Hostile::speak_segment(const Seen& seen) {
  wire::Header header = header_of(seen.bytes);
  switch (random_.below(3)) {
    case 0:
      header.number += 1 + static_cast<std::uint32_t>(random_.below(2000));
      break;
    case 1:
      header.extent ^= (1 + random_.below(15)) << wire::kExtentSegmentShift;
      break;
    default:
      header.slot_low ^= 1 + static_cast<std::uint32_t>(random_.below(15));
  }
  Datagram body(seen.bytes.begin() + sizeof header, seen.bytes.end());
  for (std::byte& byte : body) byte ^= std::byte{1};
  network_.forge(random_.chance(0.5) ? seen.from : anywhere(), seen.to, datagram_of(header, body));
}

// To who sent the packet, from who it was for: "I know no such connection".
void Hostile::send_reset(const Seen& seen) {
  Datagram quoted(seen.bytes.begin(), seen.bytes.begin() + wire::kResetBytes);
  if (!resets_) {
    for (std::size_t i = 4; i < 8; ++i) quoted[i] = static_cast<std::byte>(random_.next());
  }
  const wire::Header header = wire::frames_header(wire::Type::kReset, {}, quoted.size());
  network_.forge(seen.to, seen.from, datagram_of(header, quoted));
}

}  // namespace taco::harp
