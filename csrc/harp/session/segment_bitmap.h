// One bit a segment of a message: received, or acknowledged. Messages up to a 1 MiB chunk on
// Ethernet need no allocation; the room of longer ones is kept for the next.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace taco::harp {

class SegmentBitmap {
 public:
  void reset(std::uint32_t count) {
    const std::size_t words = count / 64 + 2;  // one to spare: set_mask writes two
    if (words <= inline_.size()) {
      words_ = inline_.data();
    } else {
      if (large_.size() < words) large_.resize(words);
      words_ = large_.data();
    }
    std::fill_n(words_, words, 0);
  }
  SegmentBitmap() = default;
  SegmentBitmap(const SegmentBitmap&) = delete;
  SegmentBitmap& operator=(const SegmentBitmap&) = delete;

  bool test(std::uint32_t i) const { return words_[i / 64] >> (i % 64) & 1; }
  // False when it was set already.
  bool set(std::uint32_t i) {
    const std::uint64_t bit = std::uint64_t{1} << (i % 64);
    if (words_[i / 64] & bit) return false;
    words_[i / 64] |= bit;
    return true;
  }
  // Sets first + i for every bit i of `mask`; returns how many were clear.
  std::uint32_t set_mask(std::uint32_t first, std::uint64_t mask) {
    const unsigned shift = first % 64;
    std::uint64_t* word = words_ + first / 64;
    const std::uint64_t low = mask << shift, high = shift == 0 ? 0 : mask >> (64 - shift);
    const int fresh = std::popcount(low & ~word[0]) + std::popcount(high & ~word[1]);
    word[0] |= low;
    word[1] |= high;
    return static_cast<std::uint32_t>(fresh);
  }
  std::size_t heap_bytes() const { return large_.capacity() * sizeof(std::uint64_t); }

 private:
  std::array<std::uint64_t, 14> inline_{};
  std::vector<std::uint64_t> large_;
  std::uint64_t* words_ = inline_.data();
};

}  // namespace taco::harp
