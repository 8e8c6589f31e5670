// Reliable small packets: each has a serial number, is kept until acknowledged and is sent again
// under a new packet number when lost. Two streams a session: eager messages (delivered as they
// come) and blocks of records (delivered in order).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "harp/byte_pool.h"

namespace taco::harp {

class SmallSender {
 public:
  // At most `window` serials may be unacknowledged.
  SmallSender(BytePool& buffers, std::uint32_t window) : buffers_(buffers), window_(window) {}
  ~SmallSender();
  SmallSender(const SmallSender&) = delete;
  SmallSender& operator=(const SmallSender&) = delete;

  struct Packet {
    std::uint32_t serial;
    std::span<const std::byte> bytes;
    bool again;
  };

  // `block` comes from the pool, taken for `capacity` bytes, and belongs to the sender from here.
  // So many of its bytes answer the peer.
  void push(std::byte* block, std::size_t capacity, std::size_t bytes, std::size_t answers = 0);
  bool has_work() const { return lost_ > 0 || (unsent_ < count_ && unsent_ < window_); }
  // The packet to send next; only when has_work().
  Packet front() const;
  void mark_sent(std::uint32_t serial);
  void on_acked(std::uint32_t serial);
  void on_lost(std::uint32_t serial);
  bool empty() const { return count_ == 0; }  // everything is acknowledged
  std::size_t size() const { return count_; }
  std::size_t answer_bytes() const { return answers_; }  // that are not acknowledged
  void clear();
  void trim();
  std::size_t memory_bytes() const;

 private:
  enum class State : std::uint8_t { kUnsent, kInFlight, kLost, kAcked };
  struct Entry {
    std::byte* block;
    std::uint32_t capacity, bytes, answers;
    State state;
  };
  Entry& at(std::uint32_t offset) { return ring_[(head_ + offset) & (ring_.size() - 1)]; }
  const Entry& at(std::uint32_t offset) const {
    return ring_[(head_ + offset) & (ring_.size() - 1)];
  }
  void pop_acked();

  BytePool& buffers_;
  const std::uint32_t window_;
  std::vector<Entry> ring_;
  std::uint32_t head_ = 0, count_ = 0;
  std::uint32_t base_ = 0;    // serial of the front
  std::uint32_t unsent_ = 0;  // offset of the first never sent
  std::uint32_t lost_ = 0;
  std::uint32_t answers_ = 0;  // bytes
};

inline constexpr std::uint32_t kEagerWindow = 512;
inline constexpr std::uint32_t kRecordWindow = 128;

// Deduplicates eager messages.
class SerialFilter {
 public:
  enum class Verdict : std::uint8_t { kNew, kDuplicate, kBeyondWindow };
  Verdict add(std::uint32_t serial);

 private:
  std::array<std::uint64_t, kEagerWindow / 64> bits_{};  // of serials base_ .. base_ + window - 1
  std::uint32_t base_ = 0;                               // all before it have come
};

// Puts blocks of records into order.
class RecordOrder {
 public:
  explicit RecordOrder(BytePool& buffers) : buffers_(buffers) {}
  ~RecordOrder() { clear(); }
  RecordOrder(const RecordOrder&) = delete;
  RecordOrder& operator=(const RecordOrder&) = delete;

  enum class Verdict : std::uint8_t { kInOrder, kStashed, kDuplicate, kBeyondWindow };
  // kInOrder: read `block` now, then pop() until it returns nothing.
  Verdict add(std::uint32_t serial, std::span<const std::byte> block);
  // The next block that had come early; valid until the next call. Empty: none.
  std::span<const std::byte> pop();
  void clear();

 private:
  struct Early {
    std::uint32_t serial, bytes;
    std::byte* block;
  };
  BytePool& buffers_;
  std::uint32_t expected_ = 0;
  std::vector<Early> early_;
  Early popped_{0, 0, nullptr};
};

}  // namespace taco::harp
