// CRC32C by folding vectors of 512 bits.
#include "kernels/crc32c_folding.h"

namespace taco::kernels {
namespace {

using crc::Byte;
using crc::Fold;

constexpr Fold kBy128 = crc::fold_by(128);
constexpr Fold kBy256 = crc::fold_by(256);
constexpr Fold kBy384 = crc::fold_by(384);

struct FourLanes {
  using Vector = __m512i;

  static Vector load(const Byte* from) { return _mm512_loadu_si512(from); }
  static Vector everywhere(Fold fold) {
    return _mm512_broadcast_i32x4(_mm_set_epi64x(fold.late, fold.early));
  }
  static Vector plus(Vector first, std::uint32_t crc) {
    return _mm512_xor_si512(first,
                            _mm512_zextsi128_si512(_mm_cvtsi32_si128(static_cast<int>(crc))));
  }
  // Returns `next` with what `earlier` contributes after the distance of `constants` added to it.
  static Vector folded(Vector earlier, Vector constants, Vector next) {
    const Vector early = _mm512_clmulepi64_epi128(earlier, constants, 0x00);
    const Vector late = _mm512_clmulepi64_epi128(earlier, constants, 0x11);
    return _mm512_ternarylogic_epi64(early, late, next, 0x96);  // exclusive or of the three
  }
  // 512 bits to 128: each lane moves by its distance from the last.
  static __m128i joined(Vector sum) {
    const Vector constants = _mm512_set_epi64(0, 0, kBy128.late, kBy128.early, kBy256.late,
                                              kBy256.early, kBy384.late, kBy384.early);
    const Vector last = _mm512_maskz_mov_epi64(0xC0, sum);
    const Vector moved = folded(sum, constants, last);
    const __m256i half =
        _mm256_xor_si256(_mm512_castsi512_si256(moved), _mm512_extracti64x4_epi64(moved, 1));
    return _mm_xor_si128(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
  }
};

}  // namespace

constinit const Checksum kAvx512Checksum{"avx512", 2, crc::Folding<FourLanes, 4>::crc32c};

}  // namespace taco::kernels
