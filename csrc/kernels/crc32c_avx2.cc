// CRC32C by folding vectors of 256 bits, for processors that multiply them without having AVX-512:
// from memory twice as fast on one as the checksum instruction alone, and from its caches 1.1
// times.
#include "kernels/crc32c_folding.h"

namespace taco::kernels {
namespace {

using crc::Byte;
using crc::Fold;

constexpr Fold kBy128 = crc::fold_by(128);

struct TwoLanes {
  using Vector = __m256i;

  static Vector load(const Byte* from) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  }
  static Vector everywhere(Fold fold) {
    return _mm256_broadcastsi128_si256(_mm_set_epi64x(fold.late, fold.early));
  }
  static Vector plus(Vector first, std::uint32_t crc) {
    return _mm256_xor_si256(first,
                            _mm256_zextsi128_si256(_mm_cvtsi32_si128(static_cast<int>(crc))));
  }
  // Returns `next` with what `earlier` contributes after the distance of `constants` added to it.
  static Vector folded(Vector earlier, Vector constants, Vector next) {
    const Vector early = _mm256_clmulepi64_epi128(earlier, constants, 0x00);
    const Vector late = _mm256_clmulepi64_epi128(earlier, constants, 0x11);
    return _mm256_xor_si256(_mm256_xor_si256(early, late), next);
  }
  // 256 bits to 128: the earlier lane moves by its distance from the later.
  static __m128i joined(Vector sum) {
    const __m128i earlier = _mm256_castsi256_si128(sum);
    const __m128i constants = _mm_set_epi64x(kBy128.late, kBy128.early);
    const __m128i moved = _mm_xor_si128(_mm_clmulepi64_si128(earlier, constants, 0x00),
                                        _mm_clmulepi64_si128(earlier, constants, 0x11));
    return _mm_xor_si128(moved, _mm256_extracti128_si256(sum, 1));
  }
};

}  // namespace

// More vectors side by side than two are slower where it was measured (Zen 3).
constinit const Checksum kAvx2Checksum{"avx2", 1, crc::Folding<TwoLanes, 2>::crc32c};

}  // namespace taco::kernels
