// Arrays for kernel tests: random elements mixed with every value that arithmetic treats
// specially, and bytes at any alignment.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "kernels/kernels.h"

namespace taco::kernels::testing {

// Bytes at an address that is `misalignment` beyond a multiple of 64, with guards on both sides.
class Bytes {
 public:
  Bytes(std::size_t size, std::size_t misalignment)
      : size_(size), storage_(size + 2 * kGuard + 128, kPattern) {
    const auto start = reinterpret_cast<std::uintptr_t>(storage_.data()) + kGuard;
    offset_ = ((start + 63) / 64 * 64 + misalignment % 64) -
              reinterpret_cast<std::uintptr_t>(storage_.data());
  }
  unsigned char* data() { return storage_.data() + offset_; }
  const unsigned char* data() const { return storage_.data() + offset_; }
  std::size_t size() const { return size_; }
  bool guards_intact() const {
    for (std::size_t i = 0; i < storage_.size(); ++i) {
      if ((i < offset_ || i >= offset_ + size_) && storage_[i] != kPattern) return false;
    }
    return true;
  }
  bool operator==(const Bytes& other) const {
    return size_ == other.size_ && std::memcmp(data(), other.data(), size_) == 0;
  }

 private:
  static constexpr std::size_t kGuard = 64;
  static constexpr unsigned char kPattern = 0xA5;
  std::size_t size_;
  std::vector<unsigned char> storage_;
  std::size_t offset_ = 0;
};

using Random = std::mt19937_64;

template <class Word>
void fill_words(Bytes& bytes, Random& random, const std::vector<Word>& special) {
  for (std::size_t at = 0; at + sizeof(Word) <= bytes.size(); at += sizeof(Word)) {
    const std::uint64_t draw = random();
    const auto word = draw % 4 == 0 && !special.empty() ? special[(draw >> 8) % special.size()]
                                                        : static_cast<Word>(draw >> 7);
    std::memcpy(bytes.data() + at, &word, sizeof(Word));
  }
}

// A quarter of the elements are special: zeros of both signs, infinities, quiet and signalling
// NaNs of both signs, denormals, the largest and the smallest. The others are random bits.
inline void fill(Bytes& bytes, Dtype dtype, Random& random) {
  switch (dtype) {
    case Dtype::kF32:
    case Dtype::kC64:
      return fill_words<std::uint32_t>(
          bytes, random,
          {0, 0x80000000, 0x3F800000, 0xBF800000, 0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC00001,
           0x7F800001, 0xFFABCDEF, 1, 0x80000001, 0x007FFFFF, 0x00800000, 0x7F7FFFFF, 0xFF7FFFFF});
    case Dtype::kF64:
    case Dtype::kC128:
      return fill_words<std::uint64_t>(
          bytes, random,
          {0, 1ull << 63, 0x3FF0000000000000, 0x7FF0000000000000, 0xFFF0000000000000,
           0x7FF8000000000000, 0xFFF8000000000001, 0x7FF0000000000001, 1, 0x000FFFFFFFFFFFFF,
           0x0010000000000000, 0x7FEFFFFFFFFFFFFF, 0xFFEFFFFFFFFFFFFF});
    case Dtype::kF16:
    case Dtype::kC32:
      return fill_words<std::uint16_t>(bytes, random,
                                       {0, 0x8000, 0x3C00, 0x7C00, 0xFC00, 0x7E00, 0xFE01, 0x7C01,
                                        1, 0x8001, 0x03FF, 0x0400, 0x7BFF, 0xFBFF});
    case Dtype::kBF16:
      return fill_words<std::uint16_t>(bytes, random,
                                       {0, 0x8000, 0x3F80, 0x7F80, 0xFF80, 0x7FC0, 0xFFC1, 0x7F81,
                                        1, 0x8001, 0x007F, 0x0080, 0x7F7F, 0xFF7F});
    case Dtype::kI8:
    case Dtype::kU8:
      return fill_words<std::uint8_t>(bytes, random, {0, 1, 0x7F, 0x80, 0xFF});
    case Dtype::kI16:
      return fill_words<std::uint16_t>(bytes, random, {0, 1, 0x7FFF, 0x8000, 0xFFFF});
    case Dtype::kI32:
      return fill_words<std::uint32_t>(bytes, random, {0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF});
    case Dtype::kI64:
      return fill_words<std::uint64_t>(bytes, random,
                                       {0, 1, INT64_MAX, 1ull << 63, UINT64_MAX, 1ull << 32});
    case Dtype::kBool:
      return fill_words<std::uint8_t>(bytes, random, {0, 0, 1, 1, 2, 0x80});
  }
}

inline std::vector<std::size_t> lengths() {
  std::vector<std::size_t> all;
  for (std::size_t n = 0; n <= 130; ++n) all.push_back(n);
  for (const std::size_t n : {255, 360, 720, 1440, 4097, 65537}) all.push_back(n);
  return all;
}

}  // namespace taco::kernels::testing
