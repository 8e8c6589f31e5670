// HARP's packets, byte for byte (docs/wire.md tells it in prose). Little endian. Everything that
// arrives goes through parse(), which reads nothing out of bounds and believes nothing.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "harp/link.h"
#include "harp/transport.h"

namespace taco::harp::wire {

inline constexpr std::uint8_t kVersion = 1;
inline constexpr std::size_t kGranule = 16;        // segments are multiples of it
inline constexpr std::size_t kMinDatagram = 1200;  // every path carries this much

enum class Type : std::uint8_t {
  kData = 1,     // one segment of a bulk message
  kEager = 2,    // a whole small message
  kControl = 3,  // frames
  kHello = 4,    // handshake
};

enum Flag : std::uint8_t {
  kLastSegment = 1,  // kData: this segment ends the message
  kCoded = 2,        // kData: 8 bytes of codec metadata precede the payload
  kSealed = 4,       // a 16-byte AEAD tag ends the packet
};

// The first 32 bytes of every packet. `crc` is the CRC32C of the whole packet, itself taken as
// zero.
struct Header {
  std::uint8_t version_and_type;  // version << 4 | type
  std::uint8_t flags;
  std::uint8_t path;
  std::uint8_t reserved;
  std::uint32_t crc;
  std::uint64_t connection;  // the receiver's id of the session; 0 in a hello
  std::uint32_t number;      // low half of the packet number, one sequence per path
  // kData: low 32 bits of slot (index 20 bits, generation 24); kEager: the message's serial number.
  std::uint32_t slot_low;
  // kData: message length (31 bits) | segment index (21) << 31 | high 12 bits of the slot << 52.
  // kEager: payload bytes. kControl, kHello: bytes of frames.
  std::uint64_t extent;
};
static_assert(sizeof(Header) == 32);
static_assert(offsetof(Header, crc) == 4 && offsetof(Header, connection) == 8);
static_assert(offsetof(Header, number) == 16 && offsetof(Header, slot_low) == 20);
static_assert(offsetof(Header, extent) == 24);

// Follows the header of kEager; then the payload.
struct EagerDescriptor {
  std::uint64_t group, tag, signature;
};
static_assert(sizeof(EagerDescriptor) == 24);

inline constexpr std::uint32_t kSlotIndexBits = 20;
inline constexpr std::uint32_t kSlotGenerationMask = (1u << 24) - 1;
inline constexpr std::uint64_t kMaxSegments = std::uint64_t{1} << 21;
static_assert(kMaxMessageBytes < std::uint64_t{1} << 31);

// Body of kHello. Both sides know the other's secret from the rendezvous store; a hello without
// the target's secret is dropped before anything is allocated.
struct Hello {
  std::array<std::byte, 16> target_secret;
  std::uint64_t sender;             // incarnation
  std::uint64_t target;             // incarnation
  std::uint64_t sender_connection;  // put this into packets to me
  std::uint64_t target_connection;  // 0: not known yet, please answer
  std::uint32_t max_datagram;       // what the sender can receive
  std::uint32_t max_ack_delay_us;
  std::uint64_t credit_limit;
  std::uint32_t credit_epoch;
  std::uint32_t reserved;
};
static_assert(sizeof(Hello) == 72);

enum class Frame : std::uint8_t {
  kPadding = 0,
  kPing = 1,     // nothing: asks for an acknowledgement
  kAck = 2,      // path, largest, delay, ranges
  kCredit = 3,   // limit, epoch
  kRecords = 4,  // a block of records: u32 serial, u16 bytes, records; the rest of the packet
};

inline constexpr std::size_t kMaxAckRanges = 24;

struct AckRange {
  std::uint64_t first, last;  // inclusive
};
struct Ack {
  std::uint8_t path = 0;
  std::uint32_t delay_us = 0;  // since the largest arrived
  std::uint32_t count = 0;
  std::array<AckRange, kMaxAckRanges> ranges;  // descending, disjoint, not touching
};
struct Credit {
  std::uint64_t limit;
  std::uint32_t epoch;
};

// Records: reliable, ordered. A block of them is the unit of retransmission.
enum class RecordType : std::uint8_t {
  kWant = 1,
  kOffer = 2,
  kControl = 3,
  kNotice = 4,
  kGoodbye = 5,
};
struct Record {
  RecordType type;
  Want want;
  Offer offer;
  Control control;
  MessageKey key;
  SlotId slot;
  std::uint64_t value = 0;
  std::span<const std::byte> notice;
};
inline constexpr std::size_t kMaxRecordBytes = 8 + kMaxNoticeBytes;

// A checked packet. Spans point into the packet.
struct Packet {
  Type type;
  std::uint8_t flags, path;
  std::uint64_t connection;
  std::uint32_t number;
  // kData
  std::uint64_t slot;  // index | generation << kSlotIndexBits, generation's low 24 bits
  std::uint32_t segment;
  std::uint64_t message_bytes;
  // kEager
  std::uint32_t serial;
  EagerDescriptor eager;
  // kData and kEager: payload; kControl: frames; kHello: its body
  std::span<const std::byte> body;
};

enum class Verdict : std::uint8_t { kGood, kMalformed, kBadVersion, kBadChecksum };

// Checks bounds, version and (unless told not to) checksum. `packet` is complete only for kGood.
Verdict parse(std::span<const std::byte> bytes, Packet& packet, bool check_crc = true);
// The connection id of a packet, to find its session before anything is checked; 0 for a hello or
// for something too short.
std::uint64_t peek_connection(std::span<const std::byte> bytes);
bool is_hello(std::span<const std::byte> bytes);
// Of a kHello packet's body.
std::optional<Hello> parse_hello(std::span<const std::byte> body);

// Reads the frames of a kControl packet one after another.
class FrameReader {
 public:
  explicit FrameReader(std::span<const std::byte> body) : rest_(body) {}
  // False at the end, or when something is malformed (then bad() is true).
  bool next(Frame& frame);
  bool bad() const { return bad_; }
  Ack ack;        // after kAck; numbers are absolute
  Credit credit;  // after kCredit
  std::uint32_t serial = 0;
  std::span<const std::byte> records;  // after kRecords

 private:
  bool read_ack();
  std::span<const std::byte> rest_;
  bool bad_ = false;
};

class RecordReader {
 public:
  explicit RecordReader(std::span<const std::byte> block) : rest_(block) {}
  bool next(Record& record);
  bool bad() const { return bad_; }

 private:
  std::span<const std::byte> rest_;
  bool bad_ = false;
};

// Appends to a fixed buffer; a piece that does not fit is not written at all.
class Writer {
 public:
  explicit Writer(std::span<std::byte> buffer) : buffer_(buffer) {}
  std::size_t size() const { return size_; }
  std::size_t room() const { return buffer_.size() - size_; }
  std::span<const std::byte> bytes() const { return buffer_.first(size_); }

  bool ping();
  bool ack(const Ack& ack);  // as many ranges as fit, largest first
  bool credit(const Credit& credit);
  bool records(std::uint32_t serial, std::span<const std::byte> block);

  bool want(const Want& want);
  bool offer(const Offer& offer);
  bool control(Control kind, const MessageKey& key, SlotId slot, std::uint64_t value);
  bool notice(std::span<const std::byte> bytes);
  bool goodbye();

 private:
  template <class T>
  void put(const T& value);
  std::span<std::byte> buffer_;
  std::size_t size_ = 0;
};

// Fills `header` but for its checksum.
Header data_header(std::uint64_t connection, std::uint8_t path, std::uint64_t number, SlotId slot,
                   std::uint32_t segment, std::uint64_t message_bytes, std::uint8_t flags);
Header eager_header(std::uint64_t connection, std::uint8_t path, std::uint64_t number,
                    std::uint32_t serial, std::size_t payload_bytes);
Header frames_header(Type type, std::uint64_t connection, std::uint8_t path, std::uint64_t number,
                     std::size_t body_bytes);
// Over the header (checksum taken as absent) and the pieces that follow it; stores it.
void seal(Header& header, std::span<const std::byte> first, std::span<const std::byte> second = {});

// The full number whose low half is `low`, nearest to `expected`.
std::uint64_t expand_number(std::uint32_t low, std::uint64_t expected);

// Payload bytes of a segment in datagrams of at most `max_datagram` bytes.
constexpr std::size_t segment_bytes(std::size_t max_datagram, std::size_t tag_bytes = 0,
                                    std::size_t metadata_bytes = 0) {
  return (max_datagram - sizeof(Header) - tag_bytes - metadata_bytes) / kGranule * kGranule;
}
static_assert(segment_bytes(1472) == 1440);  // IPv4 over Ethernet

// Payload of the largest eager message: fits every path, so it need not wait for a handshake.
inline constexpr std::size_t kMaxEagerBytes = segment_bytes(kMinDatagram) - sizeof(EagerDescriptor);

}  // namespace taco::harp::wire
