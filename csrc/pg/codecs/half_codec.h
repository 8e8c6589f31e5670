// 16 bits for each float32 element: half the bytes, and one rounding.
#pragma once

#include <cstdint>
#include <memory>

#include "pg/codec.h"

namespace taco::pg {

enum class HalfFormat : std::uint8_t {
  // Groups of at most kHalfGroup elements: an int32 exponent, then their halves, which are the
  // elements times 2^exponent. The largest finite element of a group comes to the top of float16's
  // range, so that none overflows and small ones keep as many bits as there are.
  kF16,
  kBF16,  // the halves alone: bfloat16 has float32's range
};

inline constexpr std::size_t kHalfGroup = 16 << 10;

// NaN and infinity arrive as such, and what rounding carries past float32's largest as infinity.
// Decode-and-reduce takes any operation on float32. Two calls with the same format give the same
// object.
std::shared_ptr<const Codec> half_codec(HalfFormat format);

}  // namespace taco::pg
