// One parameter at a time, in plain C++: the definition that the vectors' results are tested
// against. Where the base instruction set has fma(), as 64-bit Arm's, compilers make vectors of it.
#include "kernels/half.h"
#include "kernels/optimizer_loops.h"

namespace taco::kernels {
namespace {

struct PortableOps {
  using Floats = float;
  using Halves = std::uint16_t;
  static constexpr std::size_t kAheadOfUpdates = kAhead;
  static float splat(float value) { return value; }
  static float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
  static float sqrt(float value) { return __builtin_sqrtf(value); }
  static float decode(std::uint16_t half) { return bf16_to_float(half); }
  static std::uint16_t encode(float value) { return float_to_bf16(value); }
  static float round(float value) { return bf16_to_float(float_to_bf16(value)); }
};

}  // namespace

constinit const Optimizers kPortableOptimizers = make_optimizers<PortableOps>("portable");

}  // namespace taco::kernels
