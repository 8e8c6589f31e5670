// Small buffers (64 B to 16 KiB, powers of two) that come and go with messages: unmatched eager
// data, packets kept for retransmission. Keeps a bounded number of free ones of each size, so that
// a steady state allocates nothing and an idle engine holds little. One per engine; owner thread.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/assert.h"

namespace taco::harp {

class BytePool {
 public:
  BytePool() = default;
  BytePool(const BytePool&) = delete;
  BytePool& operator=(const BytePool&) = delete;
  ~BytePool() {
    for (auto& list : free_) {
      for (std::byte* block : list) delete[] block;
    }
  }

  // At least `bytes` long; goes back through give() with the same `bytes`.
  std::byte* take(std::size_t bytes) {
    const std::size_t index = class_of(bytes);
    in_use_ += kSmallest << index;
    auto& list = free_[index];
    if (list.empty()) return new std::byte[kSmallest << index];
    std::byte* block = list.back();
    list.pop_back();
    return block;
  }
  void give(std::byte* block, std::size_t bytes) {
    const std::size_t index = class_of(bytes);
    TACO_ASSERT(in_use_ >= kSmallest << index);
    in_use_ -= kSmallest << index;
    auto& list = free_[index];
    if (list.size() < (kKeepBytes / kSmallest) >> index) {
      list.push_back(block);
    } else {
      delete[] block;
    }
  }
  std::size_t bytes_in_use() const { return in_use_; }
  // Free blocks kept for reuse: at most kKeepBytes of each size, whatever the number of sessions.
  std::size_t bytes_kept() const {
    std::size_t bytes = 0;
    for (std::size_t i = 0; i < free_.size(); ++i) bytes += free_[i].size() * (kSmallest << i);
    return bytes;
  }

 private:
  static constexpr std::size_t kSmallest = 64;
  static constexpr std::size_t kKeepBytes = 16 * 1024;  // of each size
  static std::size_t class_of(std::size_t bytes) {
    return bytes <= kSmallest ? 0 : std::bit_width((bytes - 1) / kSmallest);
  }
  std::array<std::vector<std::byte*>, 12> free_;
  std::size_t in_use_ = 0;
};

}  // namespace taco::harp
