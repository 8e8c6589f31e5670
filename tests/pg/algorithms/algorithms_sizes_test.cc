// Every algorithm for each world size from 19 to 64, proved by the interpreter.
#include "support/every_algorithm.h"

namespace taco::pg {
namespace {

using namespace testing;

TEST_P(EveryAlgorithm, keeps_its_promises_for_every_world_size_and_host_layout) {
  set_codec(128);
  for (int world = 19; world <= 64 && !HasFatalFailure(); ++world) prove_world(world);
  EXPECT_GT(proved_, 5);
}

INSTANTIATE_TEST_SUITE_P(All, EveryAlgorithm,
                         ::testing::ValuesIn(algorithms_and_coded().begin(),
                                             algorithms_and_coded().end()),
                         test_name);

}  // namespace
}  // namespace taco::pg
