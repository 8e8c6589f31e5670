// Checking and writing packets. The only code that looks at bytes from the network before they are
// known to be good.
#include "harp/session/wire.h"

#include <algorithm>
#include <bit>
#include <cstring>

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

// Does a segment of `bytes` fit the message it says it belongs to?
bool fits_message(const Packet& packet, std::size_t bytes) {
  if (packet.message_bytes > kMaxMessageBytes || bytes > packet.message_bytes) return false;
  if ((packet.flags & kLastSegment) == 0) {
    return bytes != 0 && bytes % kGranule == 0 &&
           (packet.segment + std::uint64_t{1}) * bytes < packet.message_bytes;
  }
  // All segments before this one are of one size.
  const std::uint64_t before = packet.message_bytes - bytes;
  if (packet.segment == 0) return before == 0;
  if (before % packet.segment != 0) return false;
  const std::uint64_t size = before / packet.segment;
  return bytes != 0 && bytes <= size && size % kGranule == 0;
}

void read_segment(const Header& header, Packet& packet) {
  packet.slot = header.slot_low | (header.extent >> kExtentSlotShift) << 32;
  packet.segment =
      static_cast<std::uint32_t>(header.extent >> kExtentSegmentShift) & (kMaxSegments - 1);
  packet.message_bytes = header.extent & ((std::uint64_t{1} << kExtentSegmentShift) - 1);
}

bool parse_fragment(Packet& packet) {
  FragmentDescriptor piece;
  if (!take(packet.body, piece)) return false;
  packet.fragment_offset = std::uint32_t{piece.offset_granules} * kGranule;
  packet.fragment_of = piece.segment_bytes;
  const std::size_t end = packet.fragment_offset + packet.body.size();
  if (packet.body.empty() || end > packet.fragment_of) return false;
  if (end < packet.fragment_of && end % kGranule != 0) return false;
  return fits_message(packet, packet.fragment_of);
}

constexpr std::uint8_t kSegmentFlags = kLastSegment | kOffered | kTrusted | kAckSoon;

// Coded packets belong to a later time.
bool parse_body(const Header& header, Packet& packet) {
  const auto only = [&](std::uint8_t flags) { return (packet.flags & ~flags) == 0; };
  const auto whole = [&] { return packet.body.size() == header.extent; };
  switch (packet.type) {
    case Type::kData:
      read_segment(header, packet);
      return only(kSegmentFlags) && fits_message(packet, packet.body.size());
    case Type::kFragment:
      read_segment(header, packet);
      return only(kSegmentFlags) && parse_fragment(packet);
    case Type::kEager:
      packet.serial = header.slot_low;
      return only(0) && take(packet.body, packet.eager) && whole();
    case Type::kControl:
      return only(kUncounted) && whole();
    case Type::kHello:
      return only(0) && whole();
    case Type::kReset:
      return only(0) && whole() && packet.body.size() == kResetBytes;
  }
  return false;
}

void read_header(const Header& header, Packet& packet) {
  packet.type = static_cast<Type>(header.version_and_type & 15);
  packet.flags = header.flags;
  packet.path = header.path;
  packet.connection = header.connection;
  packet.number = header.number;
}

bool may_be_sealed(Type type) {
  return type == Type::kData || type == Type::kEager || type == Type::kControl ||
         type == Type::kFragment;
}

}  // namespace

const char* name_of(Checksum checksum) {
  switch (checksum) {
    case Checksum::kCrc32c:
      return "crc32c";
    case Checksum::kKernel:
      return "kernel";
  }
  return "unknown";
}

std::optional<Checksum> checksum_named(std::string_view name) {
  for (const Checksum checksum : {Checksum::kCrc32c, Checksum::kKernel}) {
    if (name == name_of(checksum)) return checksum;
  }
  return std::nullopt;
}

Verdict parse(std::span<const std::byte> bytes, Packet& packet, bool check_crc,
              const SegmentMask& segments) {
  Header header;
  packet.body = bytes;
  if (!take(packet.body, header)) return Verdict::kMalformed;
  if (header.version_and_type >> 4 != kVersion) return Verdict::kBadVersion;
  if ((header.flags & kSealed) != 0) {
    read_header(header, packet);
    const bool whole = packet.body.size() >= kTagBytes && header.crc == 0;
    const bool good = whole && may_be_sealed(packet.type) && (header.flags & kTrusted) == 0;
    return good ? Verdict::kSealed : Verdict::kMalformed;
  }
  if (check_crc) {
    const SegmentMask whole{segments.key, expand_number(header.number, segments.number)};
    auto words = std::bit_cast<HeaderWords>(header);
    words[0] &= kFirstWordChecked;
    if (header.crc != masked_checksum(words, packet.body, {}, whole)) return Verdict::kBadChecksum;
  }
  read_header(header, packet);
  return header.sealed_with == 0 && parse_body(header, packet) ? Verdict::kGood
                                                               : Verdict::kMalformed;
}

// One that ends its message is followed by none of it, and is none of those that follow: it may be
// shorter than they are.
FollowingSegments::FollowingSegments(std::span<const std::byte> first, const Packet& packet,
                                     const SegmentMask& by)
    : bytes_(first.size()), left_(0), by_(by) {
  std::memcpy(expected_.data(), first.data(), sizeof expected_);
  expected_[0] &= kFirstWordChecked;
  follow(expected_);
  // One that was sealed still says so here, where `packet` is what was in it.
  const bool sealed = (expected_[0] >> 8 & kSealed) != 0;
  if (packet.type != Type::kData || sealed || (packet.flags & kLastSegment) != 0) return;
  const std::uint64_t whole = (packet.message_bytes - 1) / packet.body.size();
  left_ = std::min(whole, kMaxSegments) - (packet.segment + std::uint64_t{1});
}

bool FollowingSegments::take(std::span<const std::byte> bytes, Packet& packet) {
  if (left_ == 0 || bytes.size() != bytes_) return false;
  HeaderWords words;
  std::memcpy(words.data(), bytes.data(), sizeof words);
  const auto crc = static_cast<std::uint32_t>(words[0] >> 32);
  words[0] &= kFirstWordChecked;
  if (words[0] != expected_[0] || words[1] != expected_[1] || words[2] != expected_[2] ||
      words[3] != expected_[3]) {
    return false;
  }
  const std::span<const std::byte> body = bytes.subspan(sizeof(Header));
  const SegmentMask by{by_.key, by_.number + 1};
  if (crc != masked_checksum(words, body, {}, by)) return false;
  by_ = by;
  follow(expected_);
  --left_;
  ++packet.number;
  ++packet.segment;
  packet.body = body;
  return true;
}

Verdict parse_opened(std::span<const std::byte> bytes, Packet& packet) {
  Header header;
  packet.body = bytes;
  if (!take(packet.body, header) || packet.body.size() < kTagBytes) return Verdict::kMalformed;
  packet.body = packet.body.first(packet.body.size() - kTagBytes);
  read_header(header, packet);
  packet.flags &= static_cast<std::uint8_t>(~kSealed);
  return parse_body(header, packet) ? Verdict::kGood : Verdict::kMalformed;
}

std::uint8_t key_phase(std::span<const std::byte> bytes) {
  return static_cast<std::uint8_t>(bytes[offsetof(Header, sealed_with)] & std::byte{1});
}

std::uint8_t attempt(std::span<const std::byte> bytes) {
  return static_cast<std::uint8_t>(bytes[offsetof(Header, sealed_with)] >> 1);
}

std::uint64_t peek_connection(std::span<const std::byte> bytes) {
  Header header;
  return take(bytes, header) ? header.connection : 0;
}

PathId peek_path(std::span<const std::byte> bytes) {
  return static_cast<PathId>(bytes[offsetof(Header, path)]);
}

bool is_hello(std::span<const std::byte> bytes) {
  Header header;
  return take(bytes, header) && (header.version_and_type & 15) == static_cast<int>(Type::kHello);
}

bool is_reset(std::span<const std::byte> bytes) {
  Header header;
  return take(bytes, header) && (header.version_and_type & 15) == static_cast<int>(Type::kReset);
}

std::uint8_t peek_version(std::span<const std::byte> bytes) {
  return bytes.size() < sizeof(Header) ? 0 : static_cast<std::uint8_t>(bytes[0]) >> 4;
}

std::optional<Hello> parse_hello(std::span<const std::byte> body) {
  Hello hello;
  if (!take(body, hello) || hello.sender_connection == 0) return std::nullopt;
  if (hello.max_datagram < kMinDatagram || hello.max_datagram > 65'535) return std::nullopt;
  return hello;
}

std::array<std::byte, 1 + offsetof(Hello, proof)> proven_bytes(const Hello& hello) {
  std::array<std::byte, 1 + offsetof(Hello, proof)> bytes;
  bytes[0] = static_cast<std::byte>(kVersion << 4 | static_cast<int>(Type::kHello));
  std::memcpy(bytes.data() + 1, &hello, offsetof(Hello, proof));
  return bytes;
}

bool FrameReader::read_ack(std::span<const std::byte> body) {
  std::uint64_t last;
  std::uint32_t length;
  if (!take(body, ack.path) || !take(body, ack.delay_us) || !take(body, ack.arrived_us) ||
      !take(body, last) || !take(body, length)) {
    return false;
  }
  const std::size_t count = 1 + body.size() / kAckRangeBytes;
  if (body.size() % kAckRangeBytes != 0 || count > kMaxAckRanges || length > last) return false;
  ack.count = static_cast<std::uint32_t>(count);
  ack.ranges[0] = {last - length, last};
  for (std::uint32_t i = 1; i < count; ++i) {
    std::uint32_t gap = 0;  // numbers missing between this range and the one above, less one
    if (!take(body, gap) || !take(body, length)) return false;
    const std::uint64_t above = ack.ranges[i - 1].first;
    if (above < std::uint64_t{gap} + 2 + length) return false;
    const std::uint64_t end = above - gap - 2;
    ack.ranges[i] = {end - length, end};
  }
  return true;
}

bool FrameReader::read(Frame frame, std::span<const std::byte> body) {
  switch (frame) {
    case Frame::kPing:
      return body.empty();
    case Frame::kAck:
      return read_ack(body);
    case Frame::kCredit:
      return take(body, credit.limit) && take(body, credit.epoch) && body.empty();
    case Frame::kRecords:
      records = {};
      return take(body, serial) && take_span(body, body.size(), records);
    case Frame::kPathChallenge:
    case Frame::kPathResponse:
      return take(body, token) && body.empty();
    case Frame::kProbe:
    case Frame::kPadding:
      return true;
  }
  return true;  // unknown: skipped
}

bool FrameReader::next(Frame& frame) {
  if (bad_ || rest_.empty()) return false;
  std::uint8_t type;
  std::uint16_t bytes;
  std::span<const std::byte> body;
  const bool whole = take(rest_, type) && take(rest_, bytes) && take_span(rest_, bytes, body);
  if (whole) frame = static_cast<Frame>(type);
  bad_ = !whole || !read(frame, body);
  return !bad_;
}

bool RecordReader::read(Record& record, std::span<const std::byte> body) {
  switch (record.type) {
    case RecordType::kWant: {
      Want& want = record.want;
      return take(body, want.key) && take(body, want.signature) && take(body, want.max_bytes) &&
             take_slot(body, want.slot) && body.empty();
    }
    case RecordType::kOffer:
      return take(body, record.offer.key) && take(body, record.offer.signature) &&
             take(body, record.offer.bytes) && body.empty();
    case RecordType::kControl: {
      ControlFields fields;
      if (!take(body, fields.kind) || !take(body, fields.key) || !take_slot(body, fields.slot) ||
          !take(body, fields.value) || !body.empty()) {
        return false;
      }
      const std::optional<Control> control = control_of(fields);
      if (control) {
        record.control = *control;
      } else {
        record.type = RecordType::kUnknown;
      }
      return true;
    }
    case RecordType::kNotice:
      return body.size() <= kMaxNoticeBytes && take_span(body, body.size(), record.notice);
    case RecordType::kGoodbye:
      return body.empty();
    case RecordType::kPathOpen:
      return take(body, record.path_open) && body.empty();
    case RecordType::kPathClosed:
      return take(body, record.path_closed.path) && take(body, record.path_closed.last) &&
             body.empty();
    case RecordType::kPathMove: {
      std::uint8_t back = 0;
      if (!take(body, record.path_move.path) || !take(body, back)) return false;
      record.path_move.back = back == 1;
      return back <= 1 && body.empty();
    }
    case RecordType::kUnknown:
      break;
  }
  return true;  // unknown: skipped
}

bool RecordReader::next(Record& record) {
  if (bad_ || rest_.empty()) return false;
  std::uint8_t type;
  std::uint16_t bytes;
  std::span<const std::byte> body;
  const bool whole = take(rest_, type) && take(rest_, bytes) && take_span(rest_, bytes, body);
  if (whole) record.type = static_cast<RecordType>(type);
  bad_ = !whole || !read(record, body);
  return !bad_;
}

template <class T>
void Writer::put(const T& value) {
  std::memcpy(buffer_.data() + size_, &value, sizeof(T));
  size_ += sizeof(T);
}

void Writer::put_bytes(std::span<const std::byte> bytes) {
  if (!bytes.empty()) std::memcpy(buffer_.data() + size_, bytes.data(), bytes.size());
  size_ += bytes.size();
}

template <class Kind>
bool Writer::begin(Kind type, std::size_t bytes) {
  if (room() < bytes) return false;
  put(type);
  put(static_cast<std::uint16_t>(bytes - kPrefixBytes));
  return true;
}

bool Writer::ping() { return begin(Frame::kPing, kPingBytes); }

// The list of ranges ends where a gap or a length does not fit its 32 bits; what is said of a range
// that is too long is true as far as it goes.
bool Writer::ack(const Ack& ack) {
  if (ack.count == 0 || room() < kAckBytes) return false;
  const auto length = [](const AckRange& range) {
    return static_cast<std::uint32_t>(
        std::min<std::uint64_t>(range.last - range.first, std::uint32_t(-1)));
  };
  const auto gap = [&](std::uint32_t i) {
    return ack.ranges[i - 1].first - ack.ranges[i].last - 2;
  };
  const std::size_t most =
      std::min<std::size_t>(ack.count, 1 + (room() - kAckBytes) / kAckRangeBytes);
  std::uint32_t count = 1;
  while (count < most && gap(count) <= std::uint32_t(-1) &&
         ack.ranges[count - 1].last - ack.ranges[count - 1].first <= std::uint32_t(-1)) {
    ++count;
  }
  begin(Frame::kAck, kAckBytes + (count - 1) * kAckRangeBytes);
  put(ack.path);
  put(ack.delay_us);
  put(ack.arrived_us);
  put(ack.ranges[0].last);
  put(length(ack.ranges[0]));
  for (std::uint32_t i = 1; i < count; ++i) {
    put(static_cast<std::uint32_t>(gap(i)));
    put(length(ack.ranges[i]));
  }
  return true;
}

bool Writer::credit(const Credit& credit) {
  if (!begin(Frame::kCredit, kCreditBytes)) return false;
  put(credit.limit);
  put(credit.epoch);
  return true;
}

bool Writer::records(std::uint32_t serial, std::span<const std::byte> block) {
  if (!begin(Frame::kRecords, kRecordsOverhead + block.size())) return false;
  put(serial);
  put_bytes(block);
  return true;
}

bool Writer::token(Frame frame, std::uint64_t value) {
  if (!begin(frame, kTokenBytes)) return false;
  put(value);
  return true;
}

bool Writer::path_challenge(std::uint64_t token) {
  return this->token(Frame::kPathChallenge, token);
}
bool Writer::path_response(std::uint64_t token) { return this->token(Frame::kPathResponse, token); }

bool Writer::zeros(Frame frame, std::size_t bytes) {
  if (bytes < kPrefixBytes || !begin(frame, bytes)) return false;
  std::memset(buffer_.data() + size_, 0, bytes - kPrefixBytes);
  size_ += bytes - kPrefixBytes;
  return true;
}

bool Writer::probe(std::size_t bytes) { return zeros(Frame::kProbe, bytes); }
bool Writer::padding(std::size_t bytes) { return zeros(Frame::kPadding, bytes); }

bool Writer::want(const Want& want) {
  if (!begin(RecordType::kWant, kWantBytes)) return false;
  put(want.key);
  put(want.signature);
  put(want.max_bytes);
  put(want.slot.index);
  put(want.slot.generation);
  return true;
}

bool Writer::offer(const Offer& offer) {
  if (!begin(RecordType::kOffer, kOfferBytes)) return false;
  put(offer.key);
  put(offer.signature);
  put(offer.bytes);
  return true;
}

bool Writer::control(const ControlFields& control) {
  if (!begin(RecordType::kControl, kControlBytes)) return false;
  put(control.kind);
  put(control.key);
  put(control.slot.index);
  put(control.slot.generation);
  put(control.value);
  return true;
}

bool Writer::notice(std::span<const std::byte> bytes) {
  if (!begin(RecordType::kNotice, kPrefixBytes + bytes.size())) return false;
  put_bytes(bytes);
  return true;
}

bool Writer::goodbye() { return begin(RecordType::kGoodbye, kGoodbyeBytes); }

bool Writer::path_open(const PathOpen& path) {
  if (!begin(RecordType::kPathOpen, kPrefixBytes + sizeof path)) return false;
  put(path);
  return true;
}

bool Writer::path_closed(const PathClosed& path) {
  if (!begin(RecordType::kPathClosed, kPathClosedBytes)) return false;
  put(path.path);
  put(path.last);
  return true;
}

bool Writer::path_move(const PathMove& move) {
  if (!begin(RecordType::kPathMove, kPathMoveBytes)) return false;
  put(move.path);
  put(static_cast<std::uint8_t>(move.back));
  return true;
}

std::uint64_t expand_number(std::uint32_t low, std::uint64_t expected) {
  const auto distance = static_cast<std::int32_t>(low - static_cast<std::uint32_t>(expected));
  if (distance < 0 && expected < static_cast<std::uint64_t>(-std::int64_t{distance})) return low;
  return expected + distance;
}

}  // namespace taco::harp::wire
