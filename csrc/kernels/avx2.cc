// 256-bit vectors: processors with AVX2 and F16C (x86-64-v3). Compiled for them, called on them
// alone.
#include <immintrin.h>

#include "kernels/variant_table.h"
#include "kernels/vector_loops.h"

namespace taco::kernels {
namespace {

// For each set of lanes, the lanes in it one after the other.
struct Places {
  std::uint8_t of[256][8];
};
constexpr Places make_places() {
  Places places{};
  for (int set = 0; set < 256; ++set) {
    int next = 0;
    for (int lane = 0; lane < 8; ++lane) {
      if ((set >> lane & 1) != 0) places.of[set][next++] = static_cast<std::uint8_t>(lane);
    }
  }
  return places;
}
constexpr Places kPlaces = make_places();

struct Avx2Lanes {
  using Floats = FloatsOf<32>;
  using Words = WordsOf<32>;
  static constexpr std::size_t kLanes = 8;
  static Words first() { return Words{0, 1, 2, 3, 4, 5, 6, 7}; }
  static unsigned bits(__m256i truth) {
    return static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(truth)));
  }
  static unsigned above(Words a, Words b) {
    return bits(_mm256_cmpgt_epi32((__m256i)a, (__m256i)b));
  }
  static unsigned equal(Words a, Words b) {
    return bits(_mm256_cmpeq_epi32((__m256i)a, (__m256i)b));
  }
  static unsigned how_many(unsigned bits) { return __builtin_popcount(bits); }
  static void compress(std::uint32_t* to, Words words, unsigned bits) {
    const __m128i places = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(kPlaces.of[bits]));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                        _mm256_permutevar8x32_epi32((__m256i)words, _mm256_cvtepu8_epi32(places)));
  }
};

struct Avx2 {
  static constexpr int kBytes = 32;
  using Lanes = Avx2Lanes;
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
