// Ascending indices as the gaps between them, a byte each (kernels/select.h says how).
#include <cstring>

#include "kernels/select.h"

namespace taco::kernels {
namespace {

constexpr std::uint32_t kSkip = 255;
constexpr std::size_t kWord = 8;

}  // namespace

std::size_t encode_deltas(std::uint8_t* out, const std::uint32_t* indices, std::size_t k) {
  std::uint8_t* to = out;
  std::uint32_t next = 0;
  for (std::size_t j = 0; j < k; ++j) {
    const std::uint32_t gap = indices[j] - next;
    next = indices[j] + 1;
    std::size_t skips = gap / kSkip;
    const auto rest = static_cast<std::uint8_t>(gap % kSkip);
    // Every index still to come takes a byte at least, so with a word of them left there is room to
    // write skips by the word: no branch that depends on the gap.
    if (k - j >= kWord && skips < kWord) {
      std::memset(to, kSkip, kWord);
    } else {
      std::memset(to, kSkip, skips);
    }
    to += skips;
    *to++ = rest;
  }
  return static_cast<std::size_t>(to - out);
}

bool decode_deltas(std::uint32_t* indices, std::size_t k, const std::uint8_t* in, std::size_t bytes,
                   std::size_t n) {
  // No branch on the value of a byte: every byte writes the index under way, and the one that ends
  // it moves on.
  std::uint64_t next = 0;
  std::size_t found = 0;
  std::size_t at = 0;
  for (; at < bytes && found < k; ++at) {
    const std::uint32_t byte = in[at];
    const std::uint32_t ends = byte != kSkip ? 1 : 0;
    next += byte;
    indices[found] = static_cast<std::uint32_t>(next);
    next += ends;
    found += ends;
  }
  // All bytes used, and the last one ended an index; they ascend, so the last is the largest.
  return at == bytes && found == k && next <= n;
}

}  // namespace taco::kernels
