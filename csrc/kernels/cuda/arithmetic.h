// Arithmetic on one number, the same bits on a GPU and on the host: a GPU converts float16 by an
// instruction, of which only what it makes of NaN is not as kernels/half.h has it.
//
// The library is compiled without contraction (-fmad=false): where a fused multiply-add is meant,
// it is written out. Denormals are numbers like others, but in the file that is compiled with -ftz
// (kernels/cuda/adam.cu), as on the host (kernels/fp_mode.h).
#pragma once

#include <cmath>
#include <cstdint>

#if defined(__CUDACC__)
#include <cuda_fp16.h>
#endif

#include "kernels/cuda/exec.h"
#include "kernels/half.h"
#include "kernels/operations.h"

namespace taco::kernels::cuda {

TACO_ANYWHERE float f16_decoded(std::uint16_t half) {
#if defined(__CUDA_ARCH__)
  const float value = __half2float(__ushort_as_half(half));
  const std::uint32_t magnitude = half & 0x7FFFu;
  if (magnitude <= 0x7C00) return value;
  return __uint_as_float((half & 0x8000u) << 16 | 0x7FC0'0000 | (magnitude & 0x3FF) << 13);
#else
  return f16_to_float(half);
#endif
}

TACO_ANYWHERE std::uint16_t f16_encoded(float value) {
#if defined(__CUDA_ARCH__)
  const std::uint16_t half = __half_as_ushort(__float2half_rn(value));
  if (value == value) return half;
  const std::uint32_t bits = __float_as_uint(value);
  return static_cast<std::uint16_t>((bits >> 16 & 0x8000) | 0x7E00 | (bits >> 13 & 0x3FF));
#else
  return float_to_f16(value);
#endif
}

// How a number of each type lies in memory, and what it is computed as.
template <class T>
struct Plain {
  using Stored = T;
  using Computed = T;
  TACO_ANYWHERE static T decode(T stored) { return stored; }
  TACO_ANYWHERE static T encode(T value) { return value; }
};
struct Float16 {
  using Stored = std::uint16_t;
  using Computed = float;
  TACO_ANYWHERE static float decode(std::uint16_t stored) { return f16_decoded(stored); }
  TACO_ANYWHERE static std::uint16_t encode(float value) { return f16_encoded(value); }
};
struct Bfloat16 {
  using Stored = std::uint16_t;
  using Computed = float;
  TACO_ANYWHERE static float decode(std::uint16_t stored) { return bf16_to_float(stored); }
  TACO_ANYWHERE static std::uint16_t encode(float value) { return float_to_bf16(value); }
};

// One parameter, as the rules of kernels/optimizer_rules.h ask for it.
struct OneFloat {
  using Floats = float;
  using Halves = std::uint16_t;
  TACO_ANYWHERE static float splat(float value) { return value; }
  TACO_ANYWHERE static float fma(float a, float b, float c) { return ::fmaf(a, b, c); }
  TACO_ANYWHERE static float sqrt(float value) { return ::sqrtf(value); }
  TACO_ANYWHERE static float decode(std::uint16_t half) { return bf16_to_float(half); }
  TACO_ANYWHERE static float round(float value) { return bf16_to_float(float_to_bf16(value)); }
};

}  // namespace taco::kernels::cuda
