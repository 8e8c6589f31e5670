// Programs of many ranks in all orders (support/negotiation_simulation.h). A failure prints the
// seed, which brings it about again.
#include "support/negotiation_simulation.h"

#include <gtest/gtest.h>

namespace taco::pg::controller {
namespace {

TEST(NegotiationSimulation, WhatRunsIsWhatAllHaveSubmitted) {
  for (std::uint64_t seed = 1; seed <= 400; ++seed) {
    const std::string failure = failure_of({.seed = seed});
    ASSERT_EQ(failure, "") << "seed " << seed;
  }
}

class NegotiationOfWorld : public ::testing::TestWithParam<int> {};

TEST_P(NegotiationOfWorld, WhatRunsIsWhatAllHaveSubmitted) {
  const int world = GetParam(), seeds = world > 8 ? 5 : 60;
  for (int seed = 1; seed <= seeds; ++seed) {
    const std::string failure =
        failure_of({.seed = static_cast<std::uint64_t>(seed) << 32, .world = world});
    ASSERT_EQ(failure, "") << "world " << world << ", seed " << seed;
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, NegotiationOfWorld, ::testing::Values(1, 2, 3, 64));

}  // namespace
}  // namespace taco::pg::controller
