// Headers: composed in words, as they are, and given their checksums.
#include <algorithm>
#include <bit>
#include <cstring>

#include "harp/session/wire.h"
#include "kernels/kernels.h"

namespace taco::harp::wire {
namespace {

constexpr std::uint64_t kLowHalf = 0xFFFF'FFFF;

Header composed(Type type, const PacketId& id, std::uint8_t flags, std::uint32_t slot_low,
                std::uint64_t extent) {
  const std::uint64_t first = kVersion << 4 | static_cast<std::uint64_t>(type) | flags << 8 |
                              static_cast<std::uint64_t>(id.path) << 16;
  const std::uint64_t third = (id.number & kLowHalf) | std::uint64_t{slot_low} << 32;
  return std::bit_cast<Header>(HeaderWords{first, id.connection, third, extent});
}

Type type_of(const HeaderWords& header) { return static_cast<Type>(header[0] & 15); }

// The bytes of the body that are checked where its payload is trusted.
std::size_t checked_bytes(const HeaderWords& header) {
  return type_of(header) == Type::kFragment ? sizeof(FragmentDescriptor) : 0;
}

// The words are read one by one, as they were written.
std::uint32_t checksum(const HeaderWords& header, std::span<const std::byte> first,
                       std::span<const std::byte> second) {
  std::uint32_t crc = kernels::crc32c(0, header.data(), sizeof header);
  if ((header[0] >> 8 & kTrusted) != 0) {
    const auto body = static_cast<std::uint32_t>(first.size() + second.size());
    crc = kernels::crc32c(crc, &body, sizeof body);
    first = first.first(std::min(first.size(), checked_bytes(header)));
    second = {};
  }
  if (!first.empty()) crc = kernels::crc32c(crc, first.data(), first.size());
  if (!second.empty()) crc = kernels::crc32c(crc, second.data(), second.size());
  return crc;
}

// The mask of a checksum, for a data packet or fragment: everything but the payload's bytes counts,
// and the whole of the packet's number, so that no recording is good for another 2^32 packets.
std::uint32_t mask(const SegmentMask& by, const HeaderWords& header,
                   std::span<const std::byte> first, std::size_t second) {
  const bool fragment = type_of(header) == Type::kFragment;
  if (by.key == nullptr || (!fragment && type_of(header) != Type::kData)) return 0;
  std::uint32_t piece = 0;
  if (fragment && first.size() >= sizeof piece) std::memcpy(&piece, first.data(), sizeof piece);
  const std::uint64_t type_flags_path = header[0] & 0xFF'FFFF;
  constexpr std::uint64_t kBytes = 31;  // of all that counts
  HeaderKey::Sum sum = by.key->begin();
  sum.take(by.number);
  sum.take(header[3]);
  sum.take(static_cast<std::uint32_t>(first.size() + second) | std::uint64_t{piece} << 32);
  sum.take(header[2] >> 32 | type_flags_path << 32 | kBytes << 56);
  return sum.finish();
}

Header segment_header(Type type, const PacketId& id, SlotId slot, std::uint32_t segment,
                      std::uint64_t message_bytes, std::uint8_t flags) {
  const std::uint64_t packed = slot_number(slot);
  return composed(type, id, flags, static_cast<std::uint32_t>(packed),
                  message_bytes | std::uint64_t{segment} << kExtentSegmentShift |
                      packed >> 32 << kExtentSlotShift);
}

}  // namespace

std::uint32_t masked_checksum(const HeaderWords& header, std::span<const std::byte> first,
                              std::span<const std::byte> second, const SegmentMask& by) {
  return checksum(header, first, second) ^ mask(by, header, first, second.size());
}

void follow(HeaderWords& header) {
  header[2] = (header[2] & ~kLowHalf) | ((header[2] + 1) & kLowHalf);
  header[3] += std::uint64_t{1} << kExtentSegmentShift;
}

Header data_header(const PacketId& id, SlotId slot, std::uint32_t segment,
                   std::uint64_t message_bytes, std::uint8_t flags) {
  return segment_header(Type::kData, id, slot, segment, message_bytes, flags);
}

Header fragment_header(const PacketId& id, SlotId slot, std::uint32_t segment,
                       std::uint64_t message_bytes, std::uint8_t flags) {
  return segment_header(Type::kFragment, id, slot, segment, message_bytes, flags);
}

Header eager_header(const PacketId& id, std::uint32_t serial, std::size_t payload_bytes) {
  return composed(Type::kEager, id, 0, serial, payload_bytes);
}

Header frames_header(Type type, const PacketId& id, std::size_t body_bytes, std::uint8_t flags) {
  return composed(type, id, flags, 0, body_bytes);
}

void seal(Header& header, std::span<const std::byte> first, std::span<const std::byte> second,
          const SegmentMask& by) {
  auto words = std::bit_cast<HeaderWords>(header);
  words[0] &= kFirstWordChecked;
  header.crc = masked_checksum(words, first, second, by);
}

void mark_sealed(Header& header, std::uint8_t key_phase, std::uint8_t attempt) {
  auto words = std::bit_cast<HeaderWords>(header);
  constexpr std::uint64_t kFlag = std::uint64_t{kSealed} << 8, kWith = std::uint64_t{0xFF} << 24;
  const std::uint64_t with = key_phase | std::uint64_t{attempt} << 1;
  words[0] = (words[0] & kLowHalf & ~kWith) | kFlag | with << 24;
  header = std::bit_cast<Header>(words);
}

SegmentHeaders::SegmentHeaders(const PacketId& first, SlotId slot, std::uint32_t segment,
                               std::uint64_t message_bytes, const HeaderKey* key)
    : words_(std::bit_cast<HeaderWords>(data_header(first, slot, segment, message_bytes, 0))),
      by_{key, first.number} {}

Header SegmentHeaders::next(std::uint8_t flags, std::span<const std::byte> payload) {
  const HeaderWords words{words_[0] | std::uint64_t{flags} << 8, words_[1], words_[2], words_[3]};
  const std::uint64_t crc = masked_checksum(words, payload, {}, by_);
  follow(words_);
  ++by_.number;
  return std::bit_cast<Header>(HeaderWords{words[0] | crc << 32, words[1], words[2], words[3]});
}

}  // namespace taco::harp::wire
