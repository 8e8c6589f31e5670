// Checking and writing packets. The only code that looks at bytes from the network before they are
// known to be good.
#include "harp/session/wire.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/kernels.h"

namespace taco::harp::wire {
namespace {

static_assert(std::endian::native == std::endian::little, "packets are little endian");

template <class T>
bool take(std::span<const std::byte>& rest, T& value) {
  if (rest.size() < sizeof(T)) return false;
  std::memcpy(&value, rest.data(), sizeof(T));
  rest = rest.subspan(sizeof(T));
  return true;
}

bool take_span(std::span<const std::byte>& rest, std::size_t bytes,
               std::span<const std::byte>& value) {
  if (rest.size() < bytes) return false;
  value = rest.first(bytes);
  rest = rest.subspan(bytes);
  return true;
}

bool take_slot(std::span<const std::byte>& rest, SlotId& slot) {
  return take(rest, slot.index) && take(rest, slot.generation);
}

// A header is read and written in words of 8 bytes. What is stored in narrower pieces and loaded in
// wider ones cannot be forwarded: the load would wait until every earlier store, those of a whole
// segment among them, has reached the cache.
using Words = std::array<std::uint64_t, sizeof(Header) / 8>;
constexpr std::uint64_t kFirstHalf = 0xFFFF'FFFF;  // of the first word; the other is the checksum

Header composed(Type type, std::uint8_t flags, std::uint8_t path, std::uint64_t connection,
                std::uint64_t number, std::uint32_t slot_low, std::uint64_t extent) {
  const std::uint64_t first =
      kVersion << 4 | static_cast<std::uint64_t>(type) | flags << 8 | path << 16;
  const std::uint64_t third = (number & kFirstHalf) | std::uint64_t{slot_low} << 32;
  return std::bit_cast<Header>(Words{first, connection, third, extent});
}

// The header's own checksum field counts as zero.
std::uint32_t checksum(const Header& header, std::span<const std::byte> first,
                       std::span<const std::byte> second) {
  auto bare = std::bit_cast<Words>(header);
  bare[0] &= kFirstHalf;
  std::uint32_t crc = kernels::crc32c(0, bare.data(), sizeof bare);
  if (!first.empty()) crc = kernels::crc32c(crc, first.data(), first.size());
  if (!second.empty()) crc = kernels::crc32c(crc, second.data(), second.size());
  return crc;
}

Verdict parse_data(const Header& header, Packet& packet) {
  packet.slot = header.slot_low | (header.extent >> 52) << 32;
  packet.segment = static_cast<std::uint32_t>(header.extent >> 31) & (kMaxSegments - 1);
  packet.message_bytes = header.extent & ((std::uint64_t{1} << 31) - 1);
  const bool last = (packet.flags & kLastSegment) != 0;
  const std::size_t bytes = packet.body.size();
  if (packet.flags & ~kLastSegment) return Verdict::kMalformed;  // coded, sealed: not yet
  if (packet.message_bytes > kMaxMessageBytes || bytes > packet.message_bytes) {
    return Verdict::kMalformed;
  }
  if (last) {
    // All segments before this one are of one size.
    const std::uint64_t before = packet.message_bytes - bytes;
    if (packet.segment == 0 ? before != 0 : before % packet.segment != 0) {
      return Verdict::kMalformed;
    }
    if (packet.segment > 0) {
      const std::uint64_t size = before / packet.segment;
      if (bytes == 0 || bytes > size || size % kGranule != 0) return Verdict::kMalformed;
    }
  } else if (bytes == 0 || bytes % kGranule != 0 ||
             (packet.segment + std::uint64_t{1}) * bytes >= packet.message_bytes) {
    return Verdict::kMalformed;
  }
  return Verdict::kGood;
}

Verdict parse_body(const Header& header, Packet& packet) {
  switch (packet.type) {
    case Type::kData:
      return parse_data(header, packet);
    case Type::kEager:
      packet.serial = header.slot_low;
      if (!take(packet.body, packet.eager)) return Verdict::kMalformed;
      return packet.flags == 0 && packet.body.size() == header.extent ? Verdict::kGood
                                                                      : Verdict::kMalformed;
    case Type::kControl:
    case Type::kHello:
      return packet.flags == 0 && packet.body.size() == header.extent ? Verdict::kGood
                                                                      : Verdict::kMalformed;
  }
  return Verdict::kMalformed;
}

}  // namespace

Verdict parse(std::span<const std::byte> bytes, Packet& packet, bool check_crc) {
  Header header;
  packet.body = bytes;
  if (!take(packet.body, header)) return Verdict::kMalformed;
  if (header.version_and_type >> 4 != kVersion) return Verdict::kBadVersion;
  if (check_crc && checksum(header, packet.body, {}) != header.crc) return Verdict::kBadChecksum;
  packet.type = static_cast<Type>(header.version_and_type & 15);
  packet.flags = header.flags;
  packet.path = header.path;
  packet.connection = header.connection;
  packet.number = header.number;
  return parse_body(header, packet);
}

std::uint64_t peek_connection(std::span<const std::byte> bytes) {
  Header header;
  return take(bytes, header) ? header.connection : 0;
}

bool is_hello(std::span<const std::byte> bytes) {
  Header header;
  return take(bytes, header) && (header.version_and_type & 15) == static_cast<int>(Type::kHello);
}

std::optional<Hello> parse_hello(std::span<const std::byte> body) {
  Hello hello;
  if (!take(body, hello) || hello.sender_connection == 0) return std::nullopt;
  if (hello.max_datagram < kMinDatagram || hello.max_datagram > 65'535) return std::nullopt;
  return hello;
}

bool FrameReader::read_ack() {
  std::uint8_t count;
  std::uint64_t last;
  std::uint32_t length;
  if (!take(rest_, ack.path) || !take(rest_, count) || !take(rest_, ack.delay_us) ||
      !take(rest_, last) || !take(rest_, length)) {
    return false;
  }
  if (count == 0 || count > kMaxAckRanges || length > last) return false;
  ack.count = count;
  ack.ranges[0] = {last - length, last};
  for (std::uint32_t i = 1; i < count; ++i) {
    std::uint32_t gap;  // numbers missing between this range and the one above, less one
    if (!take(rest_, gap) || !take(rest_, length)) return false;
    const std::uint64_t above = ack.ranges[i - 1].first;
    if (above < std::uint64_t{gap} + 2 + length) return false;
    const std::uint64_t end = above - gap - 2;
    ack.ranges[i] = {end - length, end};
  }
  return true;
}

bool FrameReader::next(Frame& frame) {
  if (bad_ || rest_.empty()) return false;
  std::uint8_t type = 0;
  take(rest_, type);
  frame = static_cast<Frame>(type);
  bool good = false;
  switch (frame) {
    case Frame::kPadding:
    case Frame::kPing:
      good = true;
      break;
    case Frame::kAck:
      good = read_ack();
      break;
    case Frame::kCredit:
      good = take(rest_, credit.limit) && take(rest_, credit.epoch);
      break;
    case Frame::kRecords: {
      std::uint16_t bytes;
      good = take(rest_, serial) && take(rest_, bytes) && take_span(rest_, bytes, records);
      break;
    }
  }
  bad_ = !good;
  return good;
}

bool RecordReader::next(Record& record) {
  if (bad_ || rest_.empty()) return false;
  std::uint8_t type = 0, kind = 0;
  take(rest_, type);
  record.type = static_cast<RecordType>(type);
  bool good = false;
  switch (record.type) {
    case RecordType::kWant: {
      Want& want = record.want;
      good = take(rest_, want.key) && take(rest_, want.signature) && take(rest_, want.max_bytes) &&
             take_slot(rest_, want.slot);
      break;
    }
    case RecordType::kOffer:
      good = take(rest_, record.offer.key) && take(rest_, record.offer.signature) &&
             take(rest_, record.offer.bytes);
      break;
    case RecordType::kControl:
      good = take(rest_, kind) && kind <= static_cast<std::uint8_t>(Control::kMismatch) &&
             take(rest_, record.key) && take_slot(rest_, record.slot) && take(rest_, record.value);
      record.control = static_cast<Control>(kind);
      break;
    case RecordType::kNotice: {
      std::uint16_t bytes;
      good =
          take(rest_, bytes) && bytes <= kMaxNoticeBytes && take_span(rest_, bytes, record.notice);
      break;
    }
    case RecordType::kGoodbye:
      good = true;
      break;
  }
  bad_ = !good;
  return good;
}

template <class T>
void Writer::put(const T& value) {
  std::memcpy(buffer_.data() + size_, &value, sizeof(T));
  size_ += sizeof(T);
}

bool Writer::ping() {
  if (room() < 1) return false;
  put(Frame::kPing);
  return true;
}

bool Writer::ack(const Ack& ack) {
  constexpr std::size_t kFixed = 1 + 1 + 1 + 4 + 8 + 4, kEach = 8;
  if (ack.count == 0 || room() < kFixed) return false;
  const std::size_t fit = 1 + (room() - kFixed) / kEach;
  const auto count = static_cast<std::uint8_t>(std::min<std::size_t>(ack.count, fit));
  put(Frame::kAck);
  put(ack.path);
  put(count);
  put(ack.delay_us);
  put(ack.ranges[0].last);
  put(static_cast<std::uint32_t>(ack.ranges[0].last - ack.ranges[0].first));
  for (std::uint32_t i = 1; i < count; ++i) {
    put(static_cast<std::uint32_t>(ack.ranges[i - 1].first - ack.ranges[i].last - 2));
    put(static_cast<std::uint32_t>(ack.ranges[i].last - ack.ranges[i].first));
  }
  return true;
}

bool Writer::credit(const Credit& credit) {
  if (room() < 13) return false;
  put(Frame::kCredit);
  put(credit.limit);
  put(credit.epoch);
  return true;
}

bool Writer::records(std::uint32_t serial, std::span<const std::byte> block) {
  if (room() < 7 + block.size()) return false;
  put(Frame::kRecords);
  put(serial);
  put(static_cast<std::uint16_t>(block.size()));
  std::memcpy(buffer_.data() + size_, block.data(), block.size());
  size_ += block.size();
  return true;
}

bool Writer::want(const Want& want) {
  if (room() < 1 + 16 + 8 + 8 + 8) return false;
  put(RecordType::kWant);
  put(want.key);
  put(want.signature);
  put(want.max_bytes);
  put(want.slot.index);
  put(want.slot.generation);
  return true;
}

bool Writer::offer(const Offer& offer) {
  if (room() < 1 + 16 + 8 + 8) return false;
  put(RecordType::kOffer);
  put(offer.key);
  put(offer.signature);
  put(offer.bytes);
  return true;
}

bool Writer::control(Control kind, const MessageKey& key, SlotId slot, std::uint64_t value) {
  if (room() < 2 + 16 + 8 + 8) return false;
  put(RecordType::kControl);
  put(kind);
  put(key);
  put(slot.index);
  put(slot.generation);
  put(value);
  return true;
}

bool Writer::notice(std::span<const std::byte> bytes) {
  if (room() < 3 + bytes.size()) return false;
  put(RecordType::kNotice);
  put(static_cast<std::uint16_t>(bytes.size()));
  if (!bytes.empty()) std::memcpy(buffer_.data() + size_, bytes.data(), bytes.size());
  size_ += bytes.size();
  return true;
}

bool Writer::goodbye() {
  if (room() < 1) return false;
  put(RecordType::kGoodbye);
  return true;
}

Header data_header(std::uint64_t connection, std::uint8_t path, std::uint64_t number, SlotId slot,
                   std::uint32_t segment, std::uint64_t message_bytes, std::uint8_t flags) {
  const std::uint64_t packed = slot.index | std::uint64_t{slot.generation & kSlotGenerationMask}
                                                << kSlotIndexBits;  // 44 bits
  return composed(Type::kData, flags, path, connection, number, static_cast<std::uint32_t>(packed),
                  message_bytes | std::uint64_t{segment} << 31 | packed >> 32 << 52);
}

Header eager_header(std::uint64_t connection, std::uint8_t path, std::uint64_t number,
                    std::uint32_t serial, std::size_t payload_bytes) {
  return composed(Type::kEager, 0, path, connection, number, serial, payload_bytes);
}

Header frames_header(Type type, std::uint64_t connection, std::uint8_t path, std::uint64_t number,
                     std::size_t body_bytes) {
  return composed(type, 0, path, connection, number, 0, body_bytes);
}

void seal(Header& header, std::span<const std::byte> first, std::span<const std::byte> second) {
  header.crc = checksum(header, first, second);
}

std::uint64_t expand_number(std::uint32_t low, std::uint64_t expected) {
  const auto distance = static_cast<std::int32_t>(low - static_cast<std::uint32_t>(expected));
  if (distance < 0 && expected < static_cast<std::uint64_t>(-std::int64_t{distance})) return low;
  return expected + distance;
}

}  // namespace taco::harp::wire
