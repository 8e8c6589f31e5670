// Adam's step for GPUs, thread by thread on the host, beside the host's own.
#include <gtest/gtest.h>

#include "kernels/cuda/adam.h"
#include "kernels/fp_mode.h"
#include "kernels/samples.h"
#include "kernels/variant.h"
#include "support/fiber_grid.h"

namespace taco::kernels::cuda {
namespace {

using kernels::testing::Bytes;
using kernels::testing::Random;
using taco::testing::FiberGrid;

// All arrays of a step, each begun `shift` elements after a multiple of 64 bytes.
struct Model {
  Model(std::size_t count, std::size_t shift, Random& random)
      : parameter(4 * count, 4 * shift),
        gradient(4 * count, 4 * shift),
        first(4 * count, 4 * shift),
        second(4 * count, 4 * shift),
        bf16(2 * count, 2 * shift),
        bf16_gradient(2 * count, 2 * shift) {
    for (Bytes* bytes : {&parameter, &gradient, &first, &second}) {
      fill(*bytes, Dtype::kF32, random);
    }
    fill(bf16, Dtype::kBF16, random);
    fill(bf16_gradient, Dtype::kBF16, random);
    // Every second parameter is what its master copy rounds to.
    for (std::size_t i = 0; i < count; i += 2) {
      halves(bf16)[i] = float_to_bf16(floats(parameter)[i]);
    }
  }
  static float* floats(Bytes& bytes) { return reinterpret_cast<float*>(bytes.data()); }
  static std::uint16_t* halves(Bytes& bytes) {
    return reinterpret_cast<std::uint16_t*>(bytes.data());
  }
  ParameterRange range(bool with_bf16, bool with_bf16_gradient) {
    ParameterRange range{.count = parameter.size() / 4, .parameter = floats(parameter)};
    if (with_bf16) range.bf16_parameter = halves(bf16);
    if (with_bf16_gradient) {
      range.bf16_gradient = halves(bf16_gradient);
    } else {
      range.gradient = floats(gradient);
    }
    return range;
  }
  bool operator==(const Model& other) const {
    return parameter == other.parameter && first == other.first && second == other.second &&
           bf16 == other.bf16;
  }
  bool guards_intact() const {
    return parameter.guards_intact() && first.guards_intact() && second.guards_intact() &&
           bf16.guards_intact();
  }

  Bytes parameter, gradient, first, second, bf16, bf16_gradient;
};

TEST(CudaAdam, GivesTheHostsBitsInEveryForm) {
  Random random(1);
  std::uint64_t seed = 0;
  for (const bool decoupled : {true, false}) {
    for (const double beta1 : {0.9, 0.3}) {
      const AdamStep step =
          adam_step({.beta1 = beta1, .weight_decay = 0.1, .decoupled = decoupled}, 3, 0.25);
      for (const std::size_t count : {0, 1, 3, 4, 5, 1000, 2600}) {
        for (int form = 0; form < 4; ++form) {
          const bool bf16 = form % 2 == 1, bf16_gradient = form / 2 == 1;
          Model host(count, seed % 4, random);
          Model fibers = host;
          kPortableOptimizers.adam(step, host.range(bf16, bf16_gradient), Model::floats(host.first),
                                   Model::floats(host.second));
          const FlushMode mode;  // what -ftz is on a GPU
          ASSERT_TRUE(adam_on(FiberGrid(++seed), step, fibers.range(bf16, bf16_gradient),
                              Model::floats(fibers.first), Model::floats(fibers.second))
                          .ok());
          EXPECT_TRUE(fibers == host && fibers.guards_intact())
              << count << " elements, form " << form << ", seed " << seed;
        }
      }
    }
  }
}

TEST(CudaAdam, AsksForOneGradient) {
  float number = 0;
  const ParameterRange none{.count = 1, .parameter = &number};
  EXPECT_EQ(adam_on(FiberGrid(1), AdamStep(), none, &number, &number).message(),
            "a step of Adam needs one gradient, in float32 or in bfloat16");
}

}  // namespace
}  // namespace taco::kernels::cuda
