// 512-bit vectors: processors with AVX-512 F, BW, DQ and VL. Compiled for them, called on them
// alone.
#include <immintrin.h>

#include "kernels/variant_table.h"
#include "kernels/vector_loops.h"

namespace taco::kernels {
namespace {

struct Avx512 {
  static constexpr int kBytes = 64;
  struct F16 {
    static FloatsOf<64> decode(HalvesOf<64> halves) {
      return (FloatsOf<64>)_mm512_cvtph_ps((__m256i)halves);
    }
    static HalvesOf<64> encode(FloatsOf<64> floats) {
      return (HalvesOf<64>)_mm512_cvtps_ph((__m512)floats, _MM_FROUND_TO_NEAREST_INT);
    }
  };
};

}  // namespace

constinit const Variant kAvx512Variant = make_variant<VectorLoops<Avx512>>("avx512");

}  // namespace taco::kernels
