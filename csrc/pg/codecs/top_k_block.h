// A coded block of the TopK codec, byte for byte. Little endian.
//   header    20 bytes
//   values    float32, or float16 halves of value * 2^exponent
//   indices   of the values, one string of bytes: encode_deltas() in kernels/select.h
// A dense block has all its elements as float32 values, and no indices.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.h"

namespace taco::pg {

enum class TopKKind : std::uint8_t { kDense, kF32, kF16 };

struct TopKHeader {
  static constexpr std::uint8_t kVersion = 1;

  std::uint8_t version = kVersion;
  TopKKind kind = TopKKind::kDense;
  std::uint16_t zero = 0;
  std::uint32_t elements = 0;  // of the block
  std::uint32_t values = 0;    // that are sent
  std::int32_t exponent = 0;   // of float16 values; else 0
  std::uint32_t index_bytes = 0;
};
static_assert(sizeof(TopKHeader) == 20);

// A block as it lies in the message that brought it.
struct TopKBlock {
  TopKHeader header;
  const std::byte* values = nullptr;
  const std::uint8_t* deltas = nullptr;  // header.index_bytes of them, not looked at yet
};

// The bytes of so many values of a kind.
constexpr std::uint64_t top_k_value_bytes(TopKKind kind, std::uint64_t values) {
  return values * (kind == TopKKind::kF16 ? sizeof(std::uint16_t) : sizeof(float));
}

// The `length` bytes from another process, of which nothing is believed: they must be a block of
// `elements` elements that sends `values` of them, or is dense, and end where it ends. kMismatch
// says what is wrong, with figures. Only what the deltas say remains to be checked.
Result<TopKBlock> parse_top_k_block(const std::byte* bytes, std::size_t length,
                                    std::size_t elements, std::size_t values);

}  // namespace taco::pg
