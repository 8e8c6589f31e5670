// A bulk message under way: the sender's and the receiver's view. Taken from pools of the engine
// (ObjectPool), so that sessions hold no memory for messages they do not have.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/list.h"
#include "harp/link.h"
#include "harp/nic.h"
#include "harp/session/segment_bitmap.h"
#include "harp/session/wire.h"
#include "harp/transport.h"

namespace taco::harp {

struct SegmentRange {
  std::uint32_t first, count;
};

// The sender's view. Segments leave in order; what was lost leaves again before anything new.
//
// Sending is counted in units. A unit is a segment; after split(), once the path has become too
// narrow for segments of this size, it is a piece of one, small enough for every path. Pieces leave
// of so many segments only as the receiver keeps incomplete: it refuses others, and a sender that
// went on with those would never come to the pieces that are missing.
struct BulkSend {
  // Sealed or not.
  static constexpr std::uint32_t kPieceBytes = static_cast<std::uint32_t>(
      wire::segment_bytes(wire::kMinDatagram, wire::kTagBytes, sizeof(wire::FragmentDescriptor)));

  SendRequest* request = nullptr;  // null: not in use
  std::uint64_t group = 0;         // the request's, which may be gone before its session
  SlotId slot;
  std::uint32_t index = 0;       // in the session's table
  std::uint32_t generation = 0;  // of this use in its session, so that late acknowledgements miss
  std::uint32_t segment_bytes = 0;
  std::uint32_t segments = 0;
  std::uint32_t tag_bytes = 0;  // that end each of its packets
  std::uint32_t pieces = 1;     // units a segment; the last segment may have fewer
  std::uint32_t units = 0;
  std::uint32_t next = 0;  // first unit never sent
  std::uint32_t acked = 0;
  std::uint32_t first_missing = 0;  // unit: all before it are acknowledged
  SegmentBitmap acked_bits;
  std::vector<SegmentRange> lost;  // units to send again, the first at the end
  TxReference reference;           // of an asynchronous driver
  bool offered = false;            // before it was wanted: its packets say so

  // The session's queue's (send_queue.h).
  enum class Turn : std::uint8_t { kNone, kInGroup, kRepair, kHalted };
  Links<BulkSend> turn;
  Turn turn_is = Turn::kNone;
  std::uint32_t counted = 0;  // units that had not left when it was looked at last

  void start(SendRequest& send, SlotId to, std::size_t bytes_of_segment, std::uint32_t use,
             std::size_t tag = 0);
  // Nothing has left yet: the size of segments may still be chosen.
  bool untouched() const { return next == 0; }
  void resize(std::size_t bytes_of_segment);
  bool is_split() const { return pieces > 1; }
  // The flags of packets that carry this segment, or a piece of it.
  std::uint8_t flags_of(std::uint32_t segment) const {
    return static_cast<std::uint8_t>((segment + 1 == segments ? wire::kLastSegment : 0) |
                                     (offered ? wire::kOffered : 0));
  }
  void split();
  // The most of a unit's. A message shorter than a segment needs no path for whole ones: it is
  // never cut, nor can an empty one be.
  std::size_t datagram_bytes() const {
    constexpr std::size_t kFront = sizeof(wire::Header) + sizeof(wire::FragmentDescriptor);
    if (is_split()) return kFront + kPieceBytes + tag_bytes;
    return sizeof(wire::Header) + std::min<std::size_t>(segment_bytes, request->bytes) + tag_bytes;
  }

  bool has_work() const {
    return acked < units && (lost.empty() ? next : lost.back().first) < end_of_sendable();
  }
  // The units to send now, `most` at most; takes them off the list. A split message never gives
  // more than one segment. `again`: a retransmission.
  SegmentRange take(std::uint32_t most, bool& again);
  void put_back(SegmentRange range, bool again);
  // Marks acknowledged; true when that was the last. `whole`: a run of segments, not of pieces.
  bool acknowledge(std::uint32_t first, std::uint64_t mask, bool whole);
  void lose(std::uint32_t first, std::uint64_t mask, bool whole);
  std::uint32_t segment_of(std::uint32_t unit) const { return unit / pieces; }
  std::size_t offset_in_segment(std::uint32_t unit) const {
    return static_cast<std::size_t>(unit % pieces) * kPieceBytes;
  }
  std::size_t bytes_of_segment(std::uint32_t segment) const;
  std::size_t bytes_of(std::uint32_t unit) const;
  std::size_t datagram_of_segment(std::uint32_t segment) const {
    return sizeof(wire::Header) + bytes_of_segment(segment) + tag_bytes;
  }
  const std::byte* data_of(std::uint32_t unit) const {
    return static_cast<const std::byte*>(request->data) +
           static_cast<std::size_t>(segment_of(unit)) * segment_bytes + offset_in_segment(unit);
  }

 private:
  std::uint32_t end_of_sendable() const {
    return is_split() ? first_unit(segment_of(first_missing) + wire::kMaxPartialSegments) : units;
  }
  void add_lost(SegmentRange range);
  std::uint32_t first_unit(std::uint32_t segment) const {
    return std::min(segment * pieces, units);
  }
};

// The receiver's view of one wanted slot.
struct RecvState {
  SlotId slot;
  RecvRequest* request = nullptr;
  std::uint32_t segment_bytes = 0;  // 0: no segment has come yet
  std::uint32_t segments = 0;
  std::uint32_t received = 0;
  std::uint64_t message_bytes = 0;
  bool offered = false;  // its packets say so
  SegmentBitmap bits;
  // By segment, of those that end a line which an earlier one begins that has not come: the line's
  // last word. For receives by line alone.
  std::vector<std::uint64_t> held;

  // Before the first: segments of so many bytes each make up the message.
  void begin(std::uint64_t bytes, std::uint32_t bytes_of_segment);
  // A segment that has come for the first time.
  void consume(std::uint32_t segment, std::span<const std::byte> body);
  // The request is done.
  void end();
  std::size_t memory_bytes() const {
    return sizeof *this + bits.heap_bytes() + held.capacity() * sizeof held[0];
  }

 private:
  static constexpr std::size_t kKeptHeld = 4096;

  std::size_t begin_of(std::uint32_t segment) const {
    return static_cast<std::size_t>(segment) * segment_bytes;
  }
  std::size_t end_of(std::uint32_t segment) const {
    return std::min<std::size_t>(begin_of(segment) + segment_bytes, message_bytes);
  }
  bool ends_line_of_earlier(std::uint32_t segment) const;
  void consume_but_word(std::uint32_t segment, std::span<const std::byte> body);
};

// Objects that come and go; keeps a bounded number of free ones.
template <class T>
class ObjectPool {
 public:
  T* take() {
    if (free_.empty()) return new T();
    T* object = free_.back().release();
    free_.pop_back();
    return object;
  }
  void give(T* object) {
    std::unique_ptr<T> owned(object);
    if (free_.size() < kKeep) free_.push_back(std::move(owned));
  }
  // Free objects kept for reuse.
  std::size_t bytes_kept() const { return free_.size() * sizeof(T); }

 private:
  static constexpr std::size_t kKeep = 1024;
  std::vector<std::unique_ptr<T>> free_;
};

}  // namespace taco::harp
