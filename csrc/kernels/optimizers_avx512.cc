// 512-bit vectors: processors with AVX-512 F, BW, DQ and VL.
#include <immintrin.h>

#include "kernels/optimizer_loops.h"
#include "kernels/vector_loops.h"

namespace taco::kernels {
namespace {

struct Avx512Ops {
  using Floats = FloatsOf<64>;
  using Halves = HalvesOf<64>;
  static constexpr std::size_t kAheadOfUpdates = kAhead;
  static Floats splat(float value) { return Vector<float, 64>::splat(value); }
  static Floats fma(Floats a, Floats b, Floats c) {
    return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
  }
  static Floats sqrt(Floats value) { return (Floats)_mm512_sqrt_ps((__m512)value); }
  static Floats decode(Halves halves) { return VectorBf16<64>::decode(halves); }
  static Halves encode(Floats floats) { return VectorBf16<64>::encode_canonical(floats); }
  static Floats round(Floats floats) { return VectorBf16<64>::round(floats); }
};

}  // namespace

constinit const Optimizers kAvx512Optimizers = make_optimizers<Avx512Ops>("avx512");

}  // namespace taco::kernels
