// A bulk message under way: the sender's and the receiver's view. Taken from pools of the engine
// (ObjectPool), so that sessions hold no memory for messages they do not have.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "harp/link.h"
#include "harp/nic.h"
#include "harp/session/segment_bitmap.h"
#include "harp/transport.h"

namespace taco::harp {

struct SegmentRange {
  std::uint32_t first, count;
};

// The sender's view. Segments leave in order; what was lost leaves again before anything new.
struct BulkSend {
  SendRequest* request = nullptr;  // null: not in use
  SlotId slot;
  std::uint32_t index = 0;       // in the session's table
  std::uint32_t generation = 0;  // of this use in its session, so that late acknowledgements miss
  std::uint32_t segment_bytes = 0;
  std::uint32_t segments = 0;
  std::uint32_t next = 0;  // first segment never sent
  std::uint32_t acked = 0;
  SegmentBitmap acked_bits;
  std::vector<SegmentRange> lost;  // to send again, last first
  TxReference reference;           // of an asynchronous driver
  // The session's round of sends with something to transmit.
  BulkSend* next_active = nullptr;
  bool active = false;

  void start(SendRequest& send, SlotId to, std::size_t bytes_of_segment, std::uint32_t use);
  bool has_work() const { return !lost.empty() || next < segments; }
  // What to send now, at most `most` segments; takes it off the list. `again`: a retransmission.
  SegmentRange take(std::uint32_t most, bool& again);
  void put_back(SegmentRange range, bool again);
  // Marks acknowledged; true when that was the last.
  bool acknowledge(std::uint32_t first, std::uint64_t mask);
  void lose(std::uint32_t first, std::uint64_t mask);
  const std::byte* data_of(std::uint32_t segment) const {
    return static_cast<const std::byte*>(request->data) +
           static_cast<std::size_t>(segment) * segment_bytes;
  }
  std::size_t bytes_of(std::uint32_t segment) const;
};

// The receiver's view of one wanted slot.
struct RecvState {
  SlotId slot;
  RecvRequest* request = nullptr;
  std::uint32_t segment_bytes = 0;  // 0: no segment has come yet
  std::uint32_t segments = 0;
  std::uint32_t received = 0;
  std::uint64_t message_bytes = 0;
  SegmentBitmap bits;
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

 private:
  static constexpr std::size_t kKeep = 1024;
  std::vector<std::unique_ptr<T>> free_;
};

}  // namespace taco::harp
