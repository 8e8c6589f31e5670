// 128-bit vectors of 64-bit Arm, where they are always there.
#include <arm_neon.h>

#include "kernels/variant_table.h"
#include "kernels/vector_loops.h"

namespace taco::kernels {
namespace {

struct Neon {
  static constexpr int kBytes = 16;
  using Lanes = ScalarLanes;
  struct F16 {
    static FloatsOf<16> decode(HalvesOf<16> halves) {
      return (FloatsOf<16>)vcvt_f32_f16((float16x4_t)halves);
    }
    static HalvesOf<16> encode(FloatsOf<16> floats) {
      return (HalvesOf<16>)vcvt_f16_f32((float32x4_t)floats);
    }
  };
};

}  // namespace

constinit const Variant kNeonVariant = make_variant<VectorLoops<Neon>>("neon");

}  // namespace taco::kernels
