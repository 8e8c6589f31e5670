// 256-bit vectors: processors with AVX2 and F16C (x86-64-v3). Compiled for them, called on them
// alone.
#include <immintrin.h>

#include "kernels/variant_table.h"
#include "kernels/vector_loops.h"

namespace taco::kernels {
namespace {

struct Avx2 {
  static constexpr int kBytes = 32;
  struct F16 {
    static FloatsOf<32> decode(HalvesOf<32> halves) {
      return (FloatsOf<32>)_mm256_cvtph_ps((__m128i)halves);
    }
    static HalvesOf<32> encode(FloatsOf<32> floats) {
      return (HalvesOf<32>)_mm256_cvtps_ph((__m256)floats, _MM_FROUND_TO_NEAREST_INT);
    }
  };
};

}  // namespace

constinit const Variant kAvx2Variant = make_variant<VectorLoops<Avx2>>("avx2");

}  // namespace taco::kernels
