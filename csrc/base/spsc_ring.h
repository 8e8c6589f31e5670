// A lock-free ring of variable-size records between one producer and one consumer, in two threads
// or in two processes. The two ends are two objects over storage and indices that live elsewhere,
// so that each may see them through its own mapping: the producer writes storage and `produced`,
// the consumer writes only `consumed`. Neither end trusts the other's index without a check: a
// consumer that finds an impossible one reports corrupt() and delivers nothing more.
//
// Each record takes whole cache lines, so that neighbours never share one. Both ends keep the last
// index they saw of the other, and look again only when that one is used up.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "base/assert.h"

namespace taco {

inline constexpr std::size_t kRingGranule = 64;
inline constexpr std::size_t kRingFrame = 8;  // in front of every record: its length

namespace ring_internal {
inline constexpr std::uint32_t kWrap = 0xffffffff;  // the rest of the storage is unused, go to 0
inline constexpr std::size_t framed(std::size_t bytes) {
  return (kRingFrame + bytes + kRingGranule - 1) & ~(kRingGranule - 1);
}
}  // namespace ring_internal

class RingProducer {
 public:
  // `capacity` is a power of two, the storage aligned to kRingGranule; all outlive this object.
  RingProducer(std::byte* storage, std::size_t capacity, std::atomic<std::uint64_t>& produced,
               const std::atomic<std::uint64_t>& consumed)
      : storage_(storage), capacity_(capacity), produced_(produced), consumed_(&consumed) {}

  // The largest record that always fits into an empty ring, whatever its position.
  static constexpr std::size_t max_record(std::size_t capacity) {
    return capacity / 2 - kRingFrame;
  }

  // Room for one record of `bytes` (at most max_record), 8-byte aligned; null when the ring is
  // full. The consumer sees nothing before commit(); a second reserve() replaces the first.
  std::byte* reserve(std::size_t bytes) {
    TACO_ASSERT(bytes <= max_record(capacity_));
    const std::size_t need = ring_internal::framed(bytes);
    const std::size_t position = tail_ & (capacity_ - 1);
    const std::size_t to_end = capacity_ - position;
    const std::size_t skip = need > to_end ? to_end : 0;
    if (!has_room(skip + need)) return nullptr;
    if (skip != 0) write_length(position, ring_internal::kWrap);
    const std::size_t start = skip != 0 ? 0 : position;
    write_length(start, static_cast<std::uint32_t>(bytes));
    reserved_ = skip + need;
    return storage_ + start + kRingFrame;
  }

  // Publishes the reserved record.
  void commit() {
    TACO_ASSERT(reserved_ > 0, "nothing was reserved");
    tail_ += reserved_;
    reserved_ = 0;
    produced_.store(tail_, std::memory_order_release);
  }

  // Another process's `consumed` may become visible only after the ring is in use.
  void set_consumed(const std::atomic<std::uint64_t>& consumed) { consumed_ = &consumed; }

 private:
  bool has_room(std::size_t need) {
    if (capacity_ - (tail_ - cached_consumed_) >= need) return true;
    const std::uint64_t consumed = consumed_->load(std::memory_order_acquire);
    // Outside [cached, tail] it is a lie: keep what was true before.
    if (consumed - cached_consumed_ <= tail_ - cached_consumed_) cached_consumed_ = consumed;
    return capacity_ - (tail_ - cached_consumed_) >= need;
  }
  void write_length(std::size_t position, std::uint32_t length) {
    std::memcpy(storage_ + position, &length, sizeof length);
  }

  std::byte* storage_;
  std::size_t capacity_;
  std::atomic<std::uint64_t>& produced_;
  const std::atomic<std::uint64_t>* consumed_;
  std::uint64_t tail_ = 0;
  std::uint64_t cached_consumed_ = 0;
  std::size_t reserved_ = 0;
};

class RingConsumer {
 public:
  RingConsumer(const std::byte* storage, std::size_t capacity,
               const std::atomic<std::uint64_t>& produced, std::atomic<std::uint64_t>& consumed)
      : storage_(storage), capacity_(capacity), produced_(produced), consumed_(consumed) {}

  // True when nothing is there to read; one load in the common case.
  bool empty() {
    if (head_ != cached_produced_) return false;
    cached_produced_ = produced_.load(std::memory_order_acquire);
    return head_ == cached_produced_;
  }

  // The oldest record, or an empty span without data pointer when there is none. Valid until
  // release(); a zero-length record has a data pointer.
  std::span<const std::byte> front() {
    while (!corrupt_ && !empty()) {
      const std::uint64_t available = cached_produced_ - head_;
      const std::size_t position = head_ & (capacity_ - 1);
      const std::size_t to_end = capacity_ - position;
      if (available > capacity_ || available % kRingGranule != 0) return nonsense();
      std::uint32_t length;
      std::memcpy(&length, storage_ + position, sizeof length);
      if (length == ring_internal::kWrap) {
        if (position == 0 || available <= to_end) return nonsense();
        head_ += to_end;
        continue;
      }
      const std::size_t need = ring_internal::framed(length);
      if (need > to_end || need > available) return nonsense();
      front_ = need;
      return {storage_ + position + kRingFrame, length};
    }
    return {};
  }

  // Steps past the record front() returned. Its memory stays until release().
  void pop() {
    TACO_ASSERT(front_ > 0, "nothing was looked at");
    head_ += front_;
    front_ = 0;
  }

  // Gives the memory of everything popped back to the producer. Cheaper once for several records.
  // Returns whether there was anything to give back.
  bool release() {
    if (released_ == head_) return false;
    released_ = head_;
    consumed_.store(head_, std::memory_order_release);
    return true;
  }

  bool corrupt() const { return corrupt_; }

 private:
  std::span<const std::byte> nonsense() {
    corrupt_ = true;
    return {};
  }

  const std::byte* storage_;
  std::size_t capacity_;
  const std::atomic<std::uint64_t>& produced_;
  std::atomic<std::uint64_t>& consumed_;
  std::uint64_t head_ = 0;
  std::uint64_t released_ = 0;
  std::uint64_t cached_produced_ = 0;
  std::size_t front_ = 0;
  bool corrupt_ = false;
};

}  // namespace taco
