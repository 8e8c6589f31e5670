// A step of a negotiation that could be taken out unnoticed would be untested. Each program made of
// this file has a negotiation that lacks one (mutants/).
#include <gtest/gtest.h>

#include <cstdio>

#include "support/negotiation_simulation.h"

namespace taco::pg::controller {
namespace {

TEST(NegotiationMutant, TACO_MUTANT) {
  int failed = 0;
  for (std::uint64_t seed = 1; seed <= 2000 && failed < 2; ++seed) {
    failed += failure_of({.seed = seed}).empty() ? 0 : 1;
    if (failed == 2) std::printf("two of the first %d seeds\n", static_cast<int>(seed));
  }
  EXPECT_EQ(failed, 2);
}

}  // namespace
}  // namespace taco::pg::controller
