#include "kernels/scaled_half.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "kernels/variant.h"

namespace taco::kernels {
namespace {

constexpr int kMantissaBits = 23;
constexpr int kBias = 127;
constexpr int kMinNormal = -126;

// Exact; infinite or 0 where there is no such number.
float power_of_two(int exponent) {
  if (exponent > kBias) return std::numeric_limits<float>::infinity();
  if (exponent < kMinNormal - kMantissaBits) return 0;
  const std::uint32_t bits = exponent >= kMinNormal
                                 ? static_cast<std::uint32_t>(exponent + kBias) << kMantissaBits
                                 : std::uint32_t{1} << (exponent - (kMinNormal - kMantissaBits));
  return std::bit_cast<float>(bits);
}

// 2^-exponent of any exponent.
float inverse_power_of_two(int exponent) { return power_of_two(-std::clamp(exponent, -256, 256)); }

}  // namespace

int f16_exponent(float largest) {
  // Float16 goes up to 2^15 (2 - 2^-10), and from 2^15 (2 - 2^-11) on rounds to infinity.
  constexpr int kTop = 15;
  constexpr std::uint32_t kRoundsUp = 0x007F'F000;  // the mantissa of 2 - 2^-11
  constexpr std::uint32_t kInfinity = 0x7F80'0000, kMantissa = 0x007F'FFFF;
  const std::uint32_t magnitude = std::bit_cast<std::uint32_t>(largest) & 0x7FFF'FFFF;
  if (magnitude == 0 || magnitude >= kInfinity) return 0;
  // The exact place of a denormal does not matter: it is held to the most either way.
  const int exponent = static_cast<int>(magnitude >> kMantissaBits) - kBias;
  const int top = (magnitude & kMantissa) >= kRoundsUp ? kTop - 1 : kTop;
  return std::min(top - exponent, kMaxF16Exponent);
}

float largest_finite(const float* in, std::size_t count) {
  return chosen_variant().largest_finite(in, count);
}
void f32_to_f16_scaled(std::uint16_t* out, const float* in, std::size_t count, int exponent) {
  chosen_variant().f32_to_f16_scaled(out, in, count, power_of_two(exponent), 0);
}
float f32_to_f16_scaled_then_largest(std::uint16_t* out, const float* in, std::size_t count,
                                     int exponent, std::size_t next) {
  return chosen_variant().f32_to_f16_scaled(out, in, count, power_of_two(exponent), next);
}
void f16_to_f32_scaled(float* out, const std::uint16_t* in, std::size_t count, int exponent) {
  chosen_variant().f16_to_f32_scaled(out, in, count, inverse_power_of_two(exponent));
}
void accumulate_f16_scaled(float* out, const float* acc, const std::uint16_t* in, std::size_t count,
                           int exponent) {
  chosen_variant().accumulate_f16_scaled(out, acc, in, count, inverse_power_of_two(exponent));
}

}  // namespace taco::kernels
