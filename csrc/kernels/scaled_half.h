// Float16 with a power-of-two scale for a block of values, so that rounding to 11 bits is all that
// is lost: a gradient of 1e6 does not overflow, one of 1e-9 does not vanish. The same bits on every
// instruction set. Float16 without a scale and bfloat16 are in kernels/kernels.h.
//
// `out` may be `acc` itself, never a shifted overlap. Any exponent is safe: 2^exponent
// is infinite or 0 where float32 has no such number.
#pragma once

#include <cstddef>
#include <cstdint>

namespace taco::kernels {

// The range of f16_exponent(): both ends fit a signed byte.
inline constexpr int kMinF16Exponent = -113;
inline constexpr int kMaxF16Exponent = 126;

// The largest |x| of those that are finite; 0 if there is none.
float largest_finite(const float* in, std::size_t count);

// The power of two that brings `largest` to the top of float16's range without overflow (rounding
// included); 0 for 0. Held to kMaxF16Exponent, with which even denormals are exact.
int f16_exponent(float largest);

// out[i] = float16(in[i] * 2^exponent): nearest even, rounded once. Infinities stay, a NaN becomes
// the canonical one, what is too large becomes infinity.
void f32_to_f16_scaled(std::uint16_t* out, const float* in, std::size_t count, int exponent);

// The same, and largest_finite() of the `next` elements that follow in[count - 1], for their
// block's exponent: block by block, the memory is read once and not left idle.
float f32_to_f16_scaled_then_largest(std::uint16_t* out, const float* in, std::size_t count,
                                     int exponent, std::size_t next);

// out[i] = in[i] * 2^-exponent: exact where float32 has the number, as it has for all that
// f32_to_f16_scaled() gives of numbers below 2^127 with the exponent of their block. A NaN becomes
// the canonical one.
void f16_to_f32_scaled(float* out, const std::uint16_t* in, std::size_t count, int exponent);

// out[i] = acc[i] + in[i] * 2^-exponent, as above and then rounded once.
void accumulate_f16_scaled(float* out, const float* acc, const std::uint16_t* in, std::size_t count,
                           int exponent);

}  // namespace taco::kernels
