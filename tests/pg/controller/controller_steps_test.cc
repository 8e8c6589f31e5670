// Small named tensors, step after step, between real processes: right each time, and how long a
// step takes, which is printed and not judged. CONTROLLER_STEPS sets how many steps there are
// (default 50).
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>

#include "harp/engine/stack.h"
#include "support/controller_ranks.h"
#include "support/number_from.h"
#include "support/processes.h"

namespace taco::pg::controller {
namespace {

using harp::Stack;
using harp::StackOptions;
using testing::Fellowship;
using testing::require;
using testing::require_ok;
using testing::run_processes;
using testing::Submitted;
using testing::sum_floats;
using Floats = std::vector<float>;

constexpr int kTensors = 200;
constexpr std::size_t kElements = 64;

void take_steps(Fellowship& fellowship, int steps) {
  const std::shared_ptr<Stack> stack = require(Stack::acquire({}));
  GroupOptions group;
  group.id = 77;
  group.name = "steps";
  group.rank = fellowship.rank();
  group.world = fellowship.world();
  group.timeout = 20 * kSecond;
  const auto addresses = fellowship.all_gather(stack->address());
  for (int rank = 0; rank < group.world; ++rank) {
    group.peers.push_back(rank == group.rank ? 0 : require(stack->add_peer(addresses[rank])));
    group.global_ranks.push_back(rank);
    group.host_of_rank.push_back(0);
  }
  const auto nested = std::make_shared<NestedGroups>(stack, group);
  auto controller = require(
      Controller::start(nested, {.rank = group.rank, .world = group.world, .group = group.id}));
  fellowship.barrier();
  std::vector<double> microseconds;
  for (int step = 0; step < steps; ++step) {
    std::vector<Floats> gradients(kTensors, Floats(kElements, float(group.rank + step)));
    const Time begin = monotonic_now();
    std::vector<Submitted> made;
    for (int i = 0; i < kTensors; ++i)
      made.push_back(sum_floats(*controller, std::to_string(i), gradients[i]));
    for (const Submitted& each : made) require_ok(each.wait());
    microseconds.push_back(static_cast<double>(monotonic_now() - begin) / kMicrosecond);
    const float sum = float(group.world * step) + float(group.world * (group.world - 1)) / 2;
    for (const Submitted& each : made) EXPECT_EQ(each.floats(), Floats(kElements, sum));
    fellowship.barrier();
  }
  if (group.rank == 0) {
    std::ranges::sort(microseconds);
    std::printf("a step of %d tensors of %zu floats on %d ranks: %.0f us, at best %.0f\n", kTensors,
                kElements, group.world, microseconds[microseconds.size() / 2], microseconds[0]);
  }
  controller.reset();
  (void)nested->close(kSecond);
  stack->close();
}

TEST(ControllerSteps, BringTheSumsOfManySmallTensorsEachTime) {
  const int steps = static_cast<int>(number_from("CONTROLLER_STEPS", 50));
  for (const int status :
       run_processes({.count = 2}, [&](Fellowship& fellowship) { take_steps(fellowship, steps); }))
    EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace taco::pg::controller
