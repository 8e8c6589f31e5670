// The layout, byte by byte, that two processes of one host agree on: the half segment each writes
// for the other, the first page of an arena, the greeting, and the records in the rings. Both run
// the same build or refuse each other (kShmVersion), so these are plain structs of this machine.
//
// Every byte has one writer. A link is two half segments; each process writes its own and maps its
// peer's read-only: whether it maps the peer's, its ring of outgoing records, how far it has
// consumed the peer's ring, and which of its pulls are still valid.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "harp/control.h"
#include "harp/transport.h"

namespace taco::harp {

inline constexpr std::uint32_t kShmMagic = 0x4f434154;  // "TACO"
inline constexpr std::uint32_t kShmVersion = 6;

// A ring holds some dozens of small messages; when it is full, records wait at the sender.
inline constexpr std::size_t kShmRingBytes = 64 * 1024;
// Largest message that travels inside a ring.
inline constexpr std::size_t kShmEagerBytes = 4096;
// Sends of one link that may be pulled at the same time.
inline constexpr std::size_t kShmPulls = 256;

struct ShmHalf {
  std::uint32_t magic = kShmMagic;
  std::uint32_t version = kShmVersion;
  std::atomic<std::uint32_t> maps_peer{0};             // 1: the peer's half, for good
  alignas(64) std::atomic<std::uint64_t> produced{0};  // of the ring below
  alignas(64) std::atomic<std::uint64_t> consumed{0};  // of the peer's ring
  alignas(64) std::atomic<std::uint32_t> starved{0};   // 1: wake the producer when there is room
  // validity[i] is the generation of the send that slot i may be pulled for, or 0. Cleared before
  // the memory is given back to the user, checked by the peer after every pull: what was read
  // before the check was the message.
  alignas(64) std::array<std::atomic<std::uint32_t>, kShmPulls> validity{};
  alignas(4096) std::byte ring[kShmRingBytes];
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
static_assert(sizeof(ShmHalf) == 4096 + kShmRingBytes);

// At the start of the arena file, read by every peer.
struct ShmPage {
  std::uint32_t magic = kShmMagic;
  std::uint32_t version = kShmVersion;
  // Odd while the process sleeps; each sleep has its own number, so that one ring of the doorbell
  // is enough for it.
  alignas(64) std::atomic<std::uint32_t> sleep{0};
  // Where the caller that drives runs; negative: nowhere.
  alignas(64) std::atomic<std::int32_t> core{-1};
};

inline constexpr std::size_t kShmBlockBytes = 256 * 1024;
inline constexpr std::size_t kShmFirstBlock = 4096;  // offset of block 0 in the arena file

// Sent once by each side over the Unix socket, with the descriptors of half segment, arena and
// doorbell; or without any, by a side that refuses the connection.
struct ShmGreeting {
  std::uint32_t magic = kShmMagic;
  std::uint32_t version = kShmVersion;
  std::array<std::byte, 16> proof{};  // that the sender may connect (shm/admission.h)
  std::uint64_t incarnation = 0;      // the sender's
  std::uint64_t probe_address = 0;    // a word in the sender's private memory, for pulling
  std::uint64_t probe_value = 0;
  std::uint32_t watches_process = 0;  // the sender holds a pidfd of the receiver
  std::uint32_t refused_at = 0;       // the limit of descriptors at which it has none left for this
};
static_assert(sizeof(ShmGreeting) == 56);

enum class ShmRecordType : std::uint8_t {
  kEager = 1,    // KeyRecord, then the data
  kInline,       // SlotRecord, then the data: a bulk message small enough for the ring
  kWant,         // KeyRecord
  kOffer,        // KeyRecord
  kControl,      // ControlRecord
  kNotice,       // SlotRecord, then the bytes
  kPiece,        // PieceRecord: part of a message lies in an arena block
  kPull,         // PieceRecord: the whole message lies in the sender's memory
  kReturned,     // SlotRecord: a piece's block is no longer read
  kPulled,       // SlotRecord: a pull is over
  kCannotPull,   // SlotRecord: send the message from `offset` on through the arena
  kMayPull,      // SlotRecord: the sender of this record can pull from its receiver
  kGoodbye,      // SlotRecord
  kGoodbyeSeen,  // SlotRecord
};

// Names an open send to its receiver, who only repeats it.
struct ShmSendId {
  std::uint32_t index = 0;
  std::uint32_t generation = 0;
  bool operator==(const ShmSendId&) const = default;
};

struct ShmRecordHead {
  ShmRecordType type{};
  // kPulled, kReturned: the receive could not take it; kCannotPull: nor any other message
  std::uint8_t refused = 0;
  std::uint8_t places = 0;  // kWant: the receive is a plain copy
  std::uint8_t reserved = 0;
  std::uint32_t bytes = 0;  // that follow the record
};
struct ShmKeyRecord {
  ShmRecordHead head;
  MessageKey key;
  std::uint64_t signature = 0;
  std::uint64_t bytes = 0;  // kWant: most; kOffer: exactly
  SlotId slot;
};
struct ShmControlRecord {
  ShmRecordHead head;
  ControlFields fields;
};
struct ShmSlotRecord {
  ShmRecordHead head;
  SlotId slot;
  ShmSendId send;
  std::uint64_t offset = 0;  // kReturned: the block; kCannotPull: bytes taken so far
};
struct ShmPieceRecord {
  ShmRecordHead head;
  ShmSendId send;
  SlotId slot;
  std::uint64_t total = 0;    // bytes of the message
  std::uint64_t offset = 0;   // of the piece in it
  std::uint64_t bytes = 0;    // of the piece
  std::uint64_t address = 0;  // kPull: in the sender's memory; kPiece: the block
};
static_assert(sizeof(ShmRecordHead) == 8);
static_assert(sizeof(ShmKeyRecord) == 48);
static_assert(sizeof(ShmControlRecord) == 48);
static_assert(sizeof(ShmSlotRecord) == 32);
static_assert(sizeof(ShmPieceRecord) == 56);
static_assert(sizeof(ShmKeyRecord) + 8 <= 64, "a record without data fits one cache line");

}  // namespace taco::harp
