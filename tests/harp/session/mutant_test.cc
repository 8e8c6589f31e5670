// A mechanism that could be taken out unnoticed would be untested. Each program made of this file
// is linked with a session that lacks one (mutants/).
#include <gtest/gtest.h>

#include <cstdio>

#include "support/sim_campaign.h"

namespace taco::harp {
namespace {

TEST(ProtocolMutant, TACO_MUTANT) {
  int failed = 0;
  for (std::uint64_t seed = 1; seed <= 6000 && failed < 2; ++seed) {
    failed += run_scenario(seed).failure.empty() ? 0 : 1;
    if (failed == 2) std::printf("two of the first %d seeds\n", static_cast<int>(seed));
  }
  EXPECT_EQ(failed, 2);
}

}  // namespace
}  // namespace taco::harp
