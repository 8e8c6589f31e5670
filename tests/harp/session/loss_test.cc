#include "harp/session/loss.h"

#include <gtest/gtest.h>

namespace taco::harp {
namespace {

TEST(RoundTrip, TheProbeTimeoutCoversWhatThePeerHoldsBackAndBacksOff) {
  RoundTrip rtt;
  EXPECT_EQ(rtt.probe_timeout(0), RoundTrip::kInitial);
  for (int i = 0; i < 50; ++i) rtt.on_sample(i, 100 * kMicrosecond, 0, false);
  EXPECT_EQ(rtt.probe_timeout(0), RoundTrip::kFloor);
  EXPECT_EQ(rtt.probe_timeout(2), 4 * RoundTrip::kFloor);
  EXPECT_EQ(rtt.probe_timeout(60), RoundTrip::kCeiling);
  rtt.on_sample(50, 20 * kMillisecond, 19 * kMillisecond, false);
  EXPECT_GT(rtt.probe_timeout(0), 19 * kMillisecond);
}

TEST(RoundTrip, AStandingQueueOfOnesOwnNeverBecomesThePath) {
  RoundTrip rtt;
  Time now = 0;
  rtt.on_sample(now, 100 * kMicrosecond, 0, true);
  for (; now < 120 * kSecond; now += 10 * kMillisecond) {
    rtt.on_sample(now, 5 * kMillisecond, 0, false);
  }
  EXPECT_EQ(rtt.least(), 100 * kMicrosecond);
}

TEST(RoundTrip, ALongerPathIsLearntFromPacketsThatTravelAlone) {
  RoundTrip rtt;
  Time now = 0;
  rtt.on_sample(now, 100 * kMicrosecond, 0, true);
  for (; now < 25 * kSecond; now += 10 * kMillisecond) {
    rtt.on_sample(now, (now / kMillisecond % 3 + 30) * kMillisecond, 0, true);
  }
  EXPECT_EQ(rtt.least(), 30 * kMillisecond);
  rtt.on_sample(now, 50 * kMicrosecond, 0, false);
  EXPECT_EQ(rtt.least(), 50 * kMicrosecond) << "a shorter one is believed at once";
}

struct TailProbeTest : ::testing::Test {
  TailProbeTest() {
    for (int i = 0; i < 50; ++i) rtt.on_sample(i, 100 * kMicrosecond, 0, false);
    probe.restart(kSecond);
  }
  RoundTrip rtt;
  TailProbe probe;
};

TEST_F(TailProbeTest, IsDueAfterSilenceAndNotAgainBeforeItHasLeft) {
  const Time due = probe.deadline(rtt);
  EXPECT_EQ(due, kSecond + RoundTrip::kFloor);
  EXPECT_FALSE(probe.on_timer(rtt, due - 1));
  EXPECT_TRUE(probe.on_timer(rtt, due));
  EXPECT_EQ(probe.state(), TailProbe::State::kDue);
  EXPECT_EQ(probe.deadline(rtt), kNever);
  EXPECT_FALSE(probe.on_timer(rtt, due + kSecond));
  EXPECT_EQ(probe.unanswered(), 1u);
  probe.on_sent();
  EXPECT_EQ(probe.state(), TailProbe::State::kWatching);
}

TEST_F(TailProbeTest, AsksEverMoreRarelyUntilSomethingIsAcknowledged) {
  for (std::uint32_t asked = 0; asked < 3; ++asked) {
    EXPECT_EQ(probe.deadline(rtt), kSecond + (RoundTrip::kFloor << asked));
    ASSERT_TRUE(probe.on_timer(rtt, probe.deadline(rtt)));
    probe.on_sent();
    probe.restart(kSecond);
  }
  probe.on_acknowledged(2 * kSecond);
  EXPECT_EQ(probe.deadline(rtt), 2 * kSecond + RoundTrip::kFloor);
}

TEST_F(TailProbeTest, OneThatWasRequestedSaysNothingAboutSilence) {
  probe.request();
  EXPECT_TRUE(probe.due());
  EXPECT_EQ(probe.unanswered(), 0u);
}

TEST_F(TailProbeTest, AStallOfOnesOwnIsNobodysSilence) {
  probe.on_gap(10 * kSecond, 11 * kSecond);
  EXPECT_EQ(probe.deadline(rtt), 11 * kSecond + RoundTrip::kFloor);
  probe.on_gap(10 * kSecond, 12 * kSecond);
  EXPECT_EQ(probe.deadline(rtt), 12 * kSecond + RoundTrip::kFloor) << "never from the future";
}

}  // namespace
}  // namespace taco::harp
