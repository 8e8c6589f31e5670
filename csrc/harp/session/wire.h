// HARP's packets, byte for byte (docs/wire.md tells it in prose). Little endian. Everything that
// arrives goes through parse(), which reads nothing out of bounds and believes nothing.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "harp/link.h"
#include "harp/session/header_key.h"
#include "harp/transport.h"

namespace taco::harp::wire {

inline constexpr std::uint8_t kVersion = 2;
inline constexpr std::size_t kGranule = 16;        // segments are multiples of it
inline constexpr std::size_t kMinDatagram = 1200;  // every path carries this much
inline constexpr std::size_t kTagBytes = 16;       // end a sealed packet
// A receiver keeps the pieces of so many segments of a session, so a sender has no more begun.
inline constexpr std::uint32_t kMaxPartialSegments = 16;

// Packet numbers and acknowledgements belong to a path.
enum class PathId : std::uint8_t {};
inline constexpr PathId kFirstPath{0};  // the handshake opens it, challenges open the others

enum class Type : std::uint8_t {
  kData = 1,     // one segment of a bulk message
  kEager = 2,    // a whole small message
  kControl = 3,  // frames
  kHello = 4,    // handshake
  kReset = 5,    // "I know no such connection": quotes the header that named it
  kFragment = 6  // a piece of one segment, for a path that has become too narrow for the whole
};

enum Flag : std::uint8_t {
  kLastSegment = 1,  // kData: this segment ends the message
  kCoded = 2,        // kData: 8 bytes of codec metadata precede the payload
  kSealed = 4,       // a 16-byte AEAD tag ends the packet
  kUncounted = 8,    // kControl: asks for no acknowledgement and uses up no credit; its number
                     // belongs to a sequence of such packets
  kOffered = 16,     // kData, kFragment: the message was offered, too, in a record that it may have
                     // overtaken
  kTrusted = 32,     // kData, kFragment: the payload is not part of the checksum
  kAckSoon = 64      // kData, kFragment: the sender has little under way, and waits for news of it
};
static_assert(kLastSegment == 1 && kCoded == 2 && kSealed == 4 && kUncounted == 8 &&
              kOffered == 16 && kTrusted == 32 && kAckSoon == 64);

// The check of packets that are not sealed; as hellos say it.
enum class Checksum : std::uint8_t {
  kCrc32c = 0,  // of every byte
  kKernel = 1   // of the header alone where the payload is a segment's: UDP's checksum has that
};
const char* name_of(Checksum checksum);
std::optional<Checksum> checksum_named(std::string_view name);

// The first 32 bytes of every packet. `crc` is the CRC32C of the whole packet, itself taken as
// zero. Under kTrusted it is that of the header, of a fragment's descriptor, and of the length of
// the body (4 bytes): of all that says where the payload goes.
struct Header {
  std::uint8_t version_and_type;  // version << 4 | type
  std::uint8_t flags;
  PathId path;
  std::uint8_t sealed_with;  // of kSealed: key phase | attempt << 1; else 0
  std::uint32_t crc;
  // The receiver's id of the session, the index of its engine in the highest 8 bits; 0 in a hello
  // and in a reset.
  std::uint64_t connection;
  std::uint32_t number;  // low half of the packet number, one sequence per path
  // kData, kFragment: low 32 bits of slot (index 20 bits, generation 24); kEager: the message's
  // serial number.
  std::uint32_t slot_low;
  // kData, kFragment: message length (31 bits) | segment index (21) << 31 | high 12 bits of the
  // slot << 52. kEager: payload bytes. Others: bytes of the body.
  std::uint64_t extent;
};
static_assert(sizeof(Header) == 32);
static_assert(offsetof(Header, crc) == 4 && offsetof(Header, connection) == 8);
static_assert(offsetof(Header, number) == 16 && offsetof(Header, slot_low) == 20);
static_assert(offsetof(Header, extent) == 24);

// A header is read and written in words of 8 bytes. What is stored in narrower pieces and loaded in
// wider ones cannot be forwarded: the load would wait until every earlier store, those of a whole
// segment among them, has reached the cache.
using HeaderWords = std::array<std::uint64_t, sizeof(Header) / 8>;
inline constexpr std::uint64_t kFirstWordChecked = 0xFFFF'FFFF;  // the rest of it is the checksum
// Makes it that of the next segment, in a packet of the next number.
void follow(HeaderWords& header);

// Follows the header of kEager; then the payload.
struct EagerDescriptor {
  std::uint64_t group, tag, signature;
};
static_assert(sizeof(EagerDescriptor) == 24);

inline constexpr std::uint32_t kSlotIndexBits = 20;
inline constexpr std::uint32_t kSlotGenerationMask = (1u << 24) - 1;
// Where `extent` holds the segment index and the high bits of the slot; below both, the length.
inline constexpr unsigned kExtentSegmentShift = 31, kExtentSlotShift = 52;
// A slot as packets name it, in 44 bits.
constexpr std::uint64_t slot_number(SlotId slot) {
  return slot.index | std::uint64_t{slot.generation & kSlotGenerationMask} << kSlotIndexBits;
}
inline constexpr std::uint64_t kMaxSegments = std::uint64_t{1} << 21;
static_assert(kMaxMessageBytes < std::uint64_t{1} << kExtentSegmentShift);
static_assert(kMaxSegments == std::uint64_t{1} << (kExtentSlotShift - kExtentSegmentShift));

// Follows the header of kFragment; then the piece. All but the segment's last piece end at a
// multiple of kGranule.
struct FragmentDescriptor {
  std::uint16_t offset_granules;  // of the piece within its segment
  std::uint16_t segment_bytes;    // of the whole segment
};
static_assert(sizeof(FragmentDescriptor) == 4);

// Connection ids.
inline constexpr unsigned kEngineShift = 56;
inline constexpr std::uint8_t kOnlyEngine = 0;  // so far
constexpr std::uint64_t connection_id(std::uint8_t engine, std::uint64_t random) {
  const std::uint64_t low = random & ((std::uint64_t{1} << kEngineShift) - 1);
  return std::uint64_t{engine} << kEngineShift | (low != 0 ? low : 1);
}
constexpr std::uint8_t engine_of(std::uint64_t connection) {
  return static_cast<std::uint8_t>(connection >> kEngineShift);
}

using Nonce = std::array<std::byte, 16>;
using Proof = std::array<std::byte, 16>;

enum HelloFlag : std::uint8_t {
  kEstablished = 1,  // the sender has heard an answer to its own hello: this one needs none
  // The sender's session stands, with another of the target's than has just said hello. Is that no
  // recording? Then send back my nonce. This session will end, so do not establish yours with it.
  kChallenge = 2,
};
static_assert(kEstablished == 1 && kChallenge == 2);

// Body of kHello; whatever follows it is padding, which shows that datagrams of that size arrive.
// No secret is in it: `proof` shows that the sender knows those of both processes (proof.h), and
// the echo of a nonce that the packet is no old one.
struct Hello {
  std::uint64_t sender;             // incarnation
  std::uint64_t target;             // incarnation
  std::uint64_t sender_connection;  // put this into packets to me
  std::uint64_t target_connection;  // what I put into packets to you; 0: not known yet
  Nonce sender_nonce;               // this session's, random
  Nonce target_nonce;               // yours, as last heard; zeros: not known yet
  std::uint32_t max_datagram;       // the largest the sender can receive
  std::uint32_t largest_received;   // largest hello datagram that has come from the target
  std::uint64_t credit_limit;
  std::uint32_t credit_epoch;
  std::uint32_t max_ack_delay_us;
  PathId path;
  std::uint8_t sender_engine, target_engine;
  std::uint8_t flags;     // HelloFlag
  std::uint8_t security;  // what the sender seals: Security, sealing.h
  Checksum checksum;      // what the sender checks
  std::array<std::uint8_t, 2> reserved;
  Proof proof;  // of the header's first byte and of all before it
};
static_assert(sizeof(Hello) == 112);
static_assert(offsetof(Hello, sender_connection) == 16 && offsetof(Hello, sender_nonce) == 32);
static_assert(offsetof(Hello, max_datagram) == 64 && offsetof(Hello, credit_limit) == 72);
static_assert(offsetof(Hello, path) == 88 && offsetof(Hello, security) == 92);
static_assert(offsetof(Hello, checksum) == 93);
static_assert(offsetof(Hello, proof) == 96);

// The body of kReset: the header of the packet that was for nobody.
inline constexpr std::size_t kResetBytes = sizeof(Header);

// A frame is its type (1 byte), the length of its body (2) and its body; a record likewise. What a
// receiver does not know it skips.
inline constexpr std::size_t kPrefixBytes = 3;

// Types below kAsksNothing ask for an acknowledgement, those from there on do not: so that a packet
// with an unknown frame is treated right.
enum class Frame : std::uint8_t {
  kPing = 1,           // nothing: asks for an acknowledgement
  kRecords = 2,        // a block of records: serial (4), records
  kPathChallenge = 3,  // token (8), to be sent back the way it came
  kPathResponse = 4,   // token (8)
  kProbe = 5,          // zeros that fill a datagram to the size that is being tried
  kAck = 128,          // path (1), delay (4), arrival (4), largest (8), ranges
  kCredit = 129,       // limit (8), epoch (4)
  kPadding = 130,      // zeros
};
inline constexpr std::uint8_t kAsksNothing = 128;
constexpr bool asks_for_ack(Frame frame) { return static_cast<std::uint8_t>(frame) < kAsksNothing; }

// Whole frames and records, prefix included.
inline constexpr std::size_t kPingBytes = kPrefixBytes;
inline constexpr std::size_t kRecordsOverhead = kPrefixBytes + sizeof(std::uint32_t);  // serial
inline constexpr std::size_t kTokenBytes = kPrefixBytes + sizeof(std::uint64_t);
inline constexpr std::size_t kCreditBytes =  // limit, epoch
    kPrefixBytes + sizeof(std::uint64_t) + sizeof(std::uint32_t);
inline constexpr std::size_t kAckBytes =  // with one range: path, delay, arrival, largest, length
    kPrefixBytes + sizeof(PathId) + 2 * sizeof(std::uint32_t) + sizeof(std::uint64_t) +
    sizeof(std::uint32_t);
inline constexpr std::size_t kAckRangeBytes = 2 * sizeof(std::uint32_t);  // each further one
inline constexpr std::size_t kKeyBytes = sizeof(MessageKey), kSlotBytes = sizeof(SlotId);
inline constexpr std::size_t kWantBytes =  // key, signature, longest, slot
    kPrefixBytes + kKeyBytes + 2 * sizeof(std::uint64_t) + kSlotBytes;
inline constexpr std::size_t kOfferBytes =  // key, signature, length
    kPrefixBytes + kKeyBytes + 2 * sizeof(std::uint64_t);
inline constexpr std::size_t kControlBytes =  // kind, key, slot, value
    kPrefixBytes + sizeof(ControlFields::kind) + kKeyBytes + kSlotBytes + sizeof(std::uint64_t);
inline constexpr std::size_t kGoodbyeBytes = kPrefixBytes;
inline constexpr std::size_t kPathClosedBytes =  // path, number
    kPrefixBytes + sizeof(PathId) + sizeof(std::uint64_t);
inline constexpr std::size_t kPathMoveBytes = kPrefixBytes + sizeof(PathId) + 1;
static_assert(kKeyBytes == 16 && kSlotBytes == 8 && sizeof(ControlFields::kind) == 1);

inline constexpr std::size_t kMaxAckRanges = 24;

struct AckRange {
  std::uint64_t first, last;  // inclusive
};
struct Ack {
  PathId path = kFirstPath;
  std::uint32_t delay_us = 0;    // since the largest arrived
  std::uint32_t arrived_us = 0;  // when that was, by the receiver's clock, modulo 2^32
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
  kPathOpen = 6,
  kPathClosed = 7,
  kPathMove = 8,
  kUnknown = 255,  // of no use: what a later version means by it is not known
};
// An address of the sender's, to reach it by another path.
struct PathOpen {
  PathId path;                        // 0: the receiver chooses one
  std::uint8_t local;                 // which of the sender's addresses, published or new
  std::uint16_t port;                 // network order
  std::array<std::byte, 16> address;  // IPv6, or IPv4 mapped into it
};
static_assert(sizeof(PathOpen) == 20);
struct PathClosed {
  PathId path;
  std::uint64_t last;  // number of the last packet sent on it, so that its credit is given back
};
// The sender wishes a path to be moved: to other ports, since it is slow where it is; or back to
// those before.
struct PathMove {
  PathId path;
  bool back;
};
struct Record {
  RecordType type;
  Want want;
  Offer offer;
  Control control;
  std::span<const std::byte> notice;
  PathOpen path_open;
  PathClosed path_closed;
  PathMove path_move;
};
inline constexpr std::size_t kMaxRecordBytes = kPrefixBytes + kMaxNoticeBytes;

// A checked packet. Spans point into the packet.
struct Packet {
  Type type;
  std::uint8_t flags;
  PathId path;
  std::uint64_t connection;
  std::uint32_t number;
  // kData, kFragment
  std::uint64_t slot;  // index | generation << kSlotIndexBits, generation's low 24 bits
  std::uint32_t segment;
  std::uint64_t message_bytes;
  // kFragment: where the piece lies in its segment, and how long the segment is
  std::uint32_t fragment_offset, fragment_of;
  // kEager
  std::uint32_t serial;
  EagerDescriptor eager;
  // kData, kEager and kFragment: payload; kControl: frames; kHello: its body; kReset: the header
  // it quotes
  std::span<const std::byte> body;
};

enum class Verdict : std::uint8_t { kGood, kMalformed, kBadVersion, kBadChecksum, kSealed };

// By this the checksums of data packets and fragments are masked; without a key, by nothing.
struct SegmentMask {
  const HeaderKey* key = nullptr;
  std::uint64_t number = 0;  // the packet's, in full; for parse(), the one that is expected next
};

// Checks bounds, version and (unless told not to) checksum. `packet` is complete only for kGood.
// kSealed: what the header says is there, to be believed once the tag has been verified.
Verdict parse(std::span<const std::byte> bytes, Packet& packet, bool check_crc = true,
              const SegmentMask& segments = {});
// Reads packets that follow one which parse() has found good: the next segments of the same message
// under the next numbers, with all else the same. Super-packets consist of little else.
class FollowingSegments {
 public:
  // `first`: a data packet, and what parse() made of it. `by` holds its number in full.
  FollowingSegments(std::span<const std::byte> first, const Packet& packet, const SegmentMask& by);
  // Whether `bytes` are the next, and good by all that parse() checks; then `packet` is that one.
  // If not, parse() says what they are.
  bool take(std::span<const std::byte> bytes, Packet& packet);

 private:
  std::size_t bytes_;     // of each packet
  std::uint64_t left_;    // segments that may follow and are not the message's last
  HeaderWords expected_;  // of the next header, its checksum left out
  SegmentMask by_;
};
// One that was sealed and has been opened; all of it, the tag included.
Verdict parse_opened(std::span<const std::byte> bytes, Packet& packet);
// Which of two keys seals a packet, and how often packets of its number were offered to the network
// before. Both need a whole header at least.
std::uint8_t key_phase(std::span<const std::byte> bytes);
std::uint8_t attempt(std::span<const std::byte> bytes);
inline constexpr std::uint8_t kLastAttempt = 127;
// The connection id of a packet, to find its session before anything is checked; 0 for a hello or
// for something too short.
std::uint64_t peek_connection(std::span<const std::byte> bytes);
PathId peek_path(std::span<const std::byte> bytes);  // at least a whole header
bool is_hello(std::span<const std::byte> bytes);
bool is_reset(std::span<const std::byte> bytes);
std::uint8_t peek_version(std::span<const std::byte> bytes);  // 0: too short
// Parses the body of a kHello packet. Its proof is not looked at.
std::optional<Hello> parse_hello(std::span<const std::byte> body);
// The bytes that `proof` is a proof of.
std::array<std::byte, 1 + offsetof(Hello, proof)> proven_bytes(const Hello& hello);

// Reads the frames of a kControl packet one after another.
class FrameReader {
 public:
  explicit FrameReader(std::span<const std::byte> body) : rest_(body) {}
  // False at the end, or when something is malformed (then bad() is true). Unknown frames come by
  // with their type.
  bool next(Frame& frame);
  bool bad() const { return bad_; }
  Ack ack;        // after kAck; numbers are absolute
  Credit credit;  // after kCredit
  std::uint32_t serial = 0;
  std::span<const std::byte> records;  // after kRecords
  std::uint64_t token = 0;             // after kPathChallenge, kPathResponse

 private:
  bool read_ack(std::span<const std::byte> body);
  bool read(Frame frame, std::span<const std::byte> body);
  std::span<const std::byte> rest_;
  bool bad_ = false;
};

class RecordReader {
 public:
  explicit RecordReader(std::span<const std::byte> block) : rest_(block) {}
  // Unknown records come by with their type.
  bool next(Record& record);
  bool bad() const { return bad_; }

 private:
  static bool read(Record& record, std::span<const std::byte> body);
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
  bool path_challenge(std::uint64_t token);
  bool path_response(std::uint64_t token);
  // Frames of `bytes` in all, zeros but for their prefix; at least kPrefixBytes.
  bool probe(std::size_t bytes);
  bool padding(std::size_t bytes);

  bool want(const Want& want);
  bool offer(const Offer& offer);
  bool control(const ControlFields& control);
  bool notice(std::span<const std::byte> bytes);
  bool goodbye();
  bool path_open(const PathOpen& path);
  bool path_closed(const PathClosed& path);
  bool path_move(const PathMove& move);

 private:
  template <class T>
  void put(const T& value);
  void put_bytes(std::span<const std::byte> bytes);
  template <class Kind>
  bool begin(Kind type, std::size_t bytes);  // of all; false: no room
  bool token(Frame frame, std::uint64_t value);
  bool zeros(Frame frame, std::size_t bytes);
  std::span<std::byte> buffer_;
  std::size_t size_ = 0;
};

// The identity of a packet: the receiver's id of the session and a number on one of its paths.
// Hellos and resets have neither.
struct PacketId {
  std::uint64_t connection = 0;
  std::uint64_t number = 0;
  PathId path = kFirstPath;
};

// Complete but for the checksum.
Header data_header(const PacketId& id, SlotId slot, std::uint32_t segment,
                   std::uint64_t message_bytes, std::uint8_t flags);
// Sealed headers of segments that follow each other, in packets that do.
class SegmentHeaders {
 public:
  SegmentHeaders(const PacketId& first, SlotId slot, std::uint32_t segment,
                 std::uint64_t message_bytes, const HeaderKey* key);
  // The next one.
  Header next(std::uint8_t flags, std::span<const std::byte> payload);

 private:
  HeaderWords words_;  // without flags and checksum
  SegmentMask by_;
};
Header eager_header(const PacketId& id, std::uint32_t serial, std::size_t payload_bytes);
// As data_header, for a piece of that segment: `flags` are the whole segment's.
Header fragment_header(const PacketId& id, SlotId slot, std::uint32_t segment,
                       std::uint64_t message_bytes, std::uint8_t flags);
Header frames_header(Type type, const PacketId& id, std::size_t body_bytes, std::uint8_t flags = 0);
// Over the header (its checksum left out) and the pieces that follow it, or as much of these as
// its flags say, masked. Of a fragment the descriptor is in the first piece.
std::uint32_t masked_checksum(const HeaderWords& header, std::span<const std::byte> first,
                              std::span<const std::byte> second, const SegmentMask& by);
// Stores it.
void seal(Header& header, std::span<const std::byte> first, std::span<const std::byte> second = {},
          const SegmentMask& by = {});
// A tag will take the checksum's part.
void mark_sealed(Header& header, std::uint8_t key_phase, std::uint8_t attempt = 0);

// The full number whose low half is `low`, nearest to `expected`.
std::uint64_t expand_number(std::uint32_t low, std::uint64_t expected);

// Payload bytes of a segment in datagrams of at most `max_datagram` bytes.
constexpr std::size_t segment_bytes(std::size_t max_datagram, std::size_t tag_bytes = 0,
                                    std::size_t metadata_bytes = 0) {
  return (max_datagram - sizeof(Header) - tag_bytes - metadata_bytes) / kGranule * kGranule;
}
static_assert(segment_bytes(1472) == 1440);  // IPv4 over Ethernet
// Shorter ones would be too many to number.
constexpr std::size_t least_segment_bytes(std::uint64_t message_bytes) {
  constexpr std::uint64_t kStep = kMaxSegments * kGranule;
  return (message_bytes + kStep - 1) / kStep * kGranule;
}
static_assert(least_segment_bytes(kMaxMessageBytes) == 512 && least_segment_bytes(1) == kGranule);

// Payload of the largest eager message: fits every path, so it need not wait for a handshake.
constexpr std::size_t max_eager_bytes(std::size_t tag_bytes) {
  return segment_bytes(kMinDatagram, tag_bytes) - sizeof(EagerDescriptor);
}
static_assert(max_eager_bytes(0) == 1144 && max_eager_bytes(kTagBytes) == 1128);

}  // namespace taco::harp::wire
