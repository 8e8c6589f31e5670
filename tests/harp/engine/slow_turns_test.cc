// An engine that has work of its own in every turn: time passes for it as for anybody.
#include <gtest/gtest.h>

#include "support/sim_cluster.h"
#include "support/sim_transfer.h"

namespace taco::harp {
namespace {

class SlowTurns : public ::testing::TestWithParam<Duration> {
 protected:
  SlowTurns() {
    Transfer first(1, 10'000);
    deliver(first);
    cluster[0].set_turn_time(GetParam());
  }
  ~SlowTurns() override { cluster.end(); }

  void deliver(Transfer& transfer) {
    cluster[1].recv(0, transfer.recv);
    cluster[0].send(1, transfer.send);
    ASSERT_TRUE(run(2 * kSecond, [&] { return transfer.done(); }));
    transfer.check();
  }
  bool run(Duration most, const std::function<bool()>& done) {
    return cluster.run(cluster.now() + most, done);
  }

  SimCluster cluster{2, 1, {}};
};

TEST_P(SlowTurns, TimersFireWhenTheyAreDue) {
  bool fired = false;
  Timer timer;
  timer.context = &fired;
  timer.on_expiry = [](Timer& expired, Time) { *static_cast<bool*>(expired.context) = true; };
  run(100 * kMillisecond, [] { return false; });
  cluster[0].loop().arm_st(timer, cluster.now() + 100 * kMillisecond);
  EXPECT_TRUE(run(200 * kMillisecond, [&] { return fired; }));
  cluster[0].loop().disarm_st(timer);
}

TEST_P(SlowTurns, WhatWasLostIsSentAgain) {
  cluster.network().kill_link(0, 1, cluster.now() + 50 * kMillisecond);
  Transfer transfer(2, 5'000);
  deliver(transfer);
}

TEST_P(SlowTurns, APeerThatIsGoneIsMissed) {
  Transfer waiting(3, 5'000);
  cluster.network().kill_link(0, 1, kNever);
  cluster.network().kill_link(1, 0, kNever);
  cluster[0].recv(1, waiting.recv);
  EXPECT_TRUE(run(15 * kSecond, [&] { return waiting.received.calls > 0; }));
}

INSTANTIATE_TEST_SUITE_P(Turns, SlowTurns,
                         ::testing::Values(kMillisecond, 3 * kMillisecond, 20 * kMillisecond),
                         [](const auto& instance) {
                           return std::to_string(instance.param / kMillisecond) + "ms";
                         });

TEST(Excuses, TimeAwayIsExcusedWorkIsNot) {
  Excuses excuses;
  EXPECT_EQ(excuses.grant(kSecond, 10 * kMillisecond, 0), 10 * kMillisecond);
  EXPECT_EQ(excuses.grant(2 * kSecond, 10 * kMillisecond, 8 * kMillisecond), 2 * kMillisecond);
  EXPECT_EQ(excuses.grant(3 * kSecond, 10 * kMillisecond, 12 * kMillisecond), 0);
  EXPECT_EQ(excuses.grant(4000 * kSecond, 3600 * kSecond, 0), 3600 * kSecond) << "stopped once";
}

// Kept away nearly always, for hours.
TEST(Excuses, HalfTheTimeIsTheMostInTheLongRun) {
  Excuses excuses;
  Duration excused = 0;
  Time now = 0;
  for (int i = 0; i < 100'000; ++i) {
    now += kSecond;
    excused += excuses.grant(now, kSecond - kMillisecond, 0);
  }
  EXPECT_LE(excused, now / 2 + Excuses::kAtOnce);
  EXPECT_GE(excused, now / 3);
}

}  // namespace
}  // namespace taco::harp
