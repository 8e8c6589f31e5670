// TopK for GPUs, thread by thread on the host, beside the host's own: the same elements, the same
// residual, whatever the input and whatever the order of threads.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "kernels/cuda/blocks_of_gradient.h"
#include "support/fiber_grid.h"

namespace taco::kernels::cuda {
namespace {

using taco::testing::FiberGrid;
using testing::BlocksOfGradient;
using testing::Outcome;
using Random = std::mt19937_64;
using Fill = std::function<float(Random&, std::size_t i)>;

float normal(Random& random, std::size_t) { return std::normal_distribution<float>()(random); }

BlocksOfGradient made(std::size_t count, std::uint32_t block, std::uint32_t k, const Fill& fill,
                      std::uint64_t seed, bool with_momentum = false) {
  Random random(seed);
  BlocksOfGradient of{.count = count, .block = block, .k = k};
  const auto last = static_cast<std::uint32_t>(count - (of.blocks() - 1) * block);
  of.last_k =
      std::max(1u, std::min(last, static_cast<std::uint32_t>(std::uint64_t{k} * last / block)));
  for (std::size_t i = 0; i < count; ++i) {
    of.residual.push_back(fill(random, i));
    of.gradient.push_back(fill(random, i));
    if (with_momentum) of.momentum.push_back(fill(random, i));
  }
  return of;
}

void check(const BlocksOfGradient& of, std::uint64_t seed) {
  const Outcome expected = of.by_host();
  for (const bool in_place : {false, true}) {
    Outcome out;
    const Status status = of.select(FiberGrid(seed), in_place, out);
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_TRUE(same(of, out, expected, in_place))
        << of.k << " of " << of.block << ", seed " << seed << (in_place ? ", in place" : "");
  }
}

TEST(CudaSelect, TakesWhatTheHostTakesOfBlocksOfAnyLength) {
  std::uint64_t seed = 0;
  for (const std::uint32_t block : {1, 2, 31, 100, 4096, 4099}) {
    for (const std::size_t blocks : {1, 3}) {
      for (const std::uint32_t k : {1u, block / 100, block / 2, block}) {
        if (k == 0) continue;
        const std::size_t count = block * blocks - (blocks > 1 ? block / 3 : 0);
        ++seed;
        check(made(count, block, k, normal, seed), seed);
      }
    }
  }
}

// A sample decides here: the block is longer than its list.
TEST(CudaSelect, TakesWhatTheHostTakesByASample) {
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    check(made(30000, 12000, 120, normal, seed), seed);
    check(made(12001, 12001, 1, normal, seed), seed);
    check(made(24000, 12000, 120, normal, seed, true), seed);
  }
}

TEST(CudaSelect, AddsNothingWithoutAGradient) {
  BlocksOfGradient of = made(9000, 4500, 45, normal, 5);
  of.gradient.clear();
  check(of, 5);
}

// Samples of these values mislead: the list would be too long, or too short.
TEST(CudaSelect, TakesTheFirstOfEqualsAndSeesThroughAwkwardOrders) {
  const std::pair<const char*, Fill> fills[] = {
      {"all equal", [](Random&, std::size_t) { return 0.5f; }},
      {"zeros but for a few", [](Random&, std::size_t i) { return i % 997 == 3 ? 1.0f : 0.0f; }},
      {"zeros of both signs", [](Random& r, std::size_t) { return r() % 2 == 0 ? 0.0f : -0.0f; }},
      {"two magnitudes", [](Random& r, std::size_t) { return r() % 2 == 0 ? 1.0f : -1.0f; }},
      {"largest at the end", [](Random&, std::size_t i) { return 1e-3f * static_cast<float>(i); }},
      {"largest where no sample is",
       [](Random&, std::size_t i) { return i < 400 && i % 3 == 1 ? 7.0f : 1e-3f; }},
      {"denormals", [](Random& r, std::size_t) { return 1e-45f * static_cast<float>(r() % 50); }},
      {"largest finite", [](Random& r, std::size_t) { return r() % 9 == 0 ? 1.5e38f : -1e38f; }},
  };
  for (const auto& [name, fill] : fills) {
    SCOPED_TRACE(name);
    check(made(11000, 11000, 300, fill, 6), 6);
    check(made(6000, 3000, 30, fill, 7, true), 7);
  }
}

TEST(CudaSelect, LeavesABlockAloneThatIsNotFinite) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const float bad : {kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN()}) {
    for (const std::size_t at : {0, 4999, 5000, 14999}) {
      BlocksOfGradient of = made(15000, 5000, 50, normal, at + 1);
      of.gradient[at] = bad;
      check(of, at + 1);
    }
  }
  BlocksOfGradient of = made(6000, 3000, 30, normal, 9, true);
  of.momentum[3001] = kInfinity;
  check(of, 9);
}

TEST(CudaSelect, ReadsArraysThatAreNotAligned) {
  BlocksOfGradient of = made(9001, 9001, 90, normal, 10);
  const Outcome expected = of.by_host();
  for (const std::size_t shift : {1, 2}) {
    std::vector<float> residual(9001 + 4), gradient(9001 + 4), next(9001 + 4);
    std::copy(of.residual.begin(), of.residual.end(), residual.begin() + shift);
    std::copy(of.gradient.begin(), of.gradient.end(), gradient.begin());
    Outcome out;
    std::vector<float> unused_residual, unused_momentum;
    SelectArguments arguments = of.arguments(out, false, unused_residual, unused_momentum);
    arguments.residual = residual.data() + shift;
    arguments.gradient = gradient.data();
    arguments.new_residual = next.data() + 1;
    std::vector<std::uint32_t> workspace(select_workspace_bytes(arguments) / 4);
    ASSERT_TRUE(select_on(FiberGrid(shift), arguments, workspace.data()).ok());
    out.residual.assign(next.begin() + 1, next.begin() + 1 + 9001);
    EXPECT_TRUE(same(of, out, expected, false));
    EXPECT_EQ(next[0], 0);
    EXPECT_EQ(next[9002], 0);
  }
}

TEST(CudaSelect, SaysWhatCannotBeSelected) {
  const FiberGrid grid(1);
  const auto refusal = [&](SelectArguments of) { return select_on(grid, of, nullptr).message(); };
  float number = 0;
  EXPECT_EQ(refusal({.count = 5, .block = 0}),
            "a block of 0 elements cannot be selected from: its length has to be 1 to 1048576");
  EXPECT_EQ(refusal({.count = 5, .block = 4, .k = 5, .last_k = 1}),
            "the largest 5 of 4 elements, and 1 of the last 1, cannot be selected: it has to be 1 "
            "at least, and no more than there are");
  EXPECT_EQ(refusal({.count = 5, .block = 4, .k = 1, .last_k = 1, .momentum = &number}),
            "momentum correction needs a gradient");
  EXPECT_TRUE(select_on(grid, {.count = 0}, nullptr).ok());
}

TEST(CudaScatterAdd, AddsWhatWasTakenWhereItWas) {
  const BlocksOfGradient of = made(9000, 4000, 40, normal, 11);
  const Outcome taken = of.by_host();
  std::vector<float> sum(9000, 0.25f), expected = sum;
  expected[taken.indices[0]] = sum[taken.indices[0]] = std::numeric_limits<float>::infinity();
  std::vector<float> values = taken.values;
  values[0] = -std::numeric_limits<float>::infinity();
  for (std::size_t b = 0; b < 3; ++b) {
    scatter_add(expected.data() + 4000 * b, values.data() + 40 * b, taken.indices.data() + 40 * b,
                b == 2 ? of.last_k : 40);
  }
  ASSERT_TRUE(scatter_add_on(FiberGrid(1), sum.data(), values.data(), taken.indices.data(),
                             of.taken(), 4000, 40)
                  .ok());
  EXPECT_TRUE(testing::same_bits(sum, expected));
}

}  // namespace
}  // namespace taco::kernels::cuda
