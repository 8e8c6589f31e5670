// 512-bit vectors: processors with AVX-512 F, BW, DQ and VL. Compiled for them, called on them
// alone.
#include <immintrin.h>

#include "kernels/variant_table.h"
#include "kernels/vector_loops.h"

namespace taco::kernels {
namespace {

struct Avx512Lanes {
  using Floats = FloatsOf<64>;
  using Words = WordsOf<64>;
  static constexpr std::size_t kLanes = 16;
  static Words first() { return Words{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}; }
  static unsigned above(Words a, Words b) {
    return widened(_mm512_cmpgt_epi32_mask((__m512i)a, (__m512i)b));
  }
  static unsigned equal(Words a, Words b) {
    return widened(_mm512_cmpeq_epi32_mask((__m512i)a, (__m512i)b));
  }
  // In a general register: GCC 12 at times stores the 16 bits of a mask on the stack and reads them
  // back as 32 (thread sanitizer's build had more than 16 lanes above the limit by that).
  static unsigned widened(__mmask16 mask) {
    unsigned bits = mask;
    asm("" : "+r"(bits));  // NOLINT(hicpp-no-assembler)
    return bits;
  }
  static unsigned how_many(unsigned bits) { return __builtin_popcount(bits); }
  // Compressed in a register first: compressing into memory is slow on some processors.
  static void compress(std::uint32_t* to, Words words, unsigned bits) {
    const auto mask = static_cast<__mmask16>(bits);
    _mm512_storeu_si512(to, _mm512_maskz_compress_epi32(mask, (__m512i)words));
  }
};

struct Avx512 {
  static constexpr int kBytes = 64;
  using Lanes = Avx512Lanes;
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
