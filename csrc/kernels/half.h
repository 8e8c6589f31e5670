// One float16 or bfloat16 at a time, with integer arithmetic only: what every instruction set's
// conversion must equal bit for bit. A NaN stays a NaN (quiet), overflow becomes infinity,
// denormals are kept, ties go to even.
//
// Included by files that are compiled for different instruction sets: everything is internal.
#pragma once

#include <cstdint>

namespace taco::kernels {
namespace {

constexpr float f16_to_float(std::uint16_t half) {
  const std::uint32_t sign = std::uint32_t{half & 0x8000u} << 16;
  const std::uint32_t exponent = (half >> 10) & 0x1F;
  std::uint32_t mantissa = half & 0x3FF;
  if (exponent == 0x1F) {
    const std::uint32_t quiet = mantissa != 0 ? 0x0040'0000u : 0;
    return __builtin_bit_cast(float, sign | 0x7F80'0000u | quiet | (mantissa << 13));
  }
  if (exponent != 0) {
    return __builtin_bit_cast(float, sign | ((exponent + 112) << 23) | (mantissa << 13));
  }
  if (mantissa == 0) return __builtin_bit_cast(float, sign);
  // A denormal of float16 is a normal number of float32: move its leading bit to the hidden place.
  const auto shift = static_cast<std::uint32_t>(__builtin_clz(mantissa)) - 21;
  mantissa = (mantissa << shift) & 0x3FF;
  return __builtin_bit_cast(float, sign | ((113 - shift) << 23) | (mantissa << 13));
}

constexpr std::uint16_t float_to_f16(float value) {
  const auto bits = __builtin_bit_cast(std::uint32_t, value);
  const std::uint32_t sign = (bits >> 16) & 0x8000;
  const std::uint32_t magnitude = bits & 0x7FFF'FFFF;
  if (magnitude > 0x7F80'0000) {  // NaN
    return static_cast<std::uint16_t>(sign | 0x7E00 | ((magnitude >> 13) & 0x3FF));
  }
  if (magnitude >= 0x4780'0000) return static_cast<std::uint16_t>(sign | 0x7C00);  // >= 65536
  if (magnitude >= 0x3880'0000) {  // a normal float16; rounding up may carry into infinity
    const std::uint32_t rounded = magnitude + 0x0FFF + ((magnitude >> 13) & 1);
    return static_cast<std::uint16_t>(sign | ((rounded - 0x3800'0000) >> 13));
  }
  if (magnitude <= 0x3300'0000) return static_cast<std::uint16_t>(sign);  // <= half the least
  const std::uint32_t shift = 126 - (magnitude >> 23);                    // 14..24
  const std::uint32_t mantissa = (magnitude & 0x007F'FFFF) | 0x0080'0000;
  const std::uint32_t kept = mantissa >> shift;
  const std::uint32_t rest = mantissa & ((1u << shift) - 1);
  const std::uint32_t tie = 1u << (shift - 1);
  const std::uint32_t up = (rest > tie || (rest == tie && (kept & 1) != 0)) ? 1 : 0;
  return static_cast<std::uint16_t>(sign | (kept + up));
}

constexpr float bf16_to_float(std::uint16_t value) {
  return __builtin_bit_cast(float, std::uint32_t{value} << 16);
}

constexpr std::uint16_t float_to_bf16(float value) {
  const auto bits = __builtin_bit_cast(std::uint32_t, value);
  if ((bits & 0x7FFF'FFFF) > 0x7F80'0000) return 0x7FC0;
  return static_cast<std::uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

}  // namespace
}  // namespace taco::kernels
