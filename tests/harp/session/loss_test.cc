#include "harp/session/loss.h"

#include <gtest/gtest.h>

namespace taco::harp {
namespace {

// Nothing queues, or it does so on the way there.
void on_sample(RoundTrip& rtt, Time now, Duration time, Duration delay, bool alone) {
  rtt.on_sample(now, time, delay, static_cast<std::uint32_t>((time - delay) / kMicrosecond), alone);
}

// A way there and back of 100 us without queues, between hosts whose clocks have nothing to do with
// each other.
struct TwoWays {
  double drift = 0;         // of the peer's clock, a second
  std::uint32_t ahead = 0;  // us, that it is ahead of ours at first
  RoundTrip rtt;
  Time now = 0;

  Duration queue_of(Duration there, Duration back) {
    const Duration half = 50 * kMicrosecond;
    const Time sent = now - 2 * half - there - back, arrived = sent + half + there;
    const auto peers = static_cast<std::int64_t>(static_cast<double>(arrived) * (1 + drift));
    rtt.on_sample(now, now - sent, 0,
                  static_cast<std::uint32_t>(peers / kMicrosecond) + ahead -
                      static_cast<std::uint32_t>(sent / kMicrosecond),
                  false);
    return rtt.queue();
  }
};

TEST(RoundTrip, AQueueOnTheWayBackIsNoneOnTheWayThere) {
  for (const std::uint32_t ahead : {0u, 5u, 1u << 31, 0u - 2000}) {
    TwoWays ways{.ahead = ahead, .now = kSecond};
    EXPECT_EQ(ways.queue_of(0, 0), 0) << ahead;
    for (int i = 0; i < 2000; ++i) {
      ways.now += 10 * kMillisecond;
      const Duration there = i % 7 * kMillisecond, back = i % 5 * kMillisecond;
      ASSERT_NEAR(ways.queue_of(there, back), there, 50 * kMicrosecond) << ahead << " " << i;
    }
  }
}

// 200 us a second, for ten minutes.
TEST(RoundTrip, ClocksThatDriftApartAreNoQueue) {
  for (const double drift : {200e-6, -200e-6}) {
    TwoWays ways{.drift = drift, .now = kSecond};
    for (int i = 0; i < 60'000; ++i) {
      ways.now += 10 * kMillisecond;
      const Duration there = i % 20 < 10 ? 0 : 3 * kMillisecond;
      const Duration back = i % 20 == 0 ? 0 : 2 * kMillisecond;
      ASSERT_NEAR(ways.queue_of(there, back), there, 100 * kMicrosecond) << drift << " " << i;
    }
  }
}

// Tests a stream that always has something waiting on its way, and whose peer's clock is slow.
// There is nothing on the way back, so that what is hidden would not be missed there either.
TEST(RoundTrip, ASlowClockHidesNoQueueThatNeverEmpties) {
  for (const double drift : {-90e-6, 0.0, 90e-6}) {
    TwoWays ways{.drift = drift, .now = kSecond};
    EXPECT_EQ(ways.queue_of(0, 0), 0);
    for (int i = 0; i < 30'000; ++i) {
      ways.now += 10 * kMillisecond;
      ASSERT_NEAR(ways.queue_of(4 * kMillisecond, 0), 4 * kMillisecond, 100 * kMicrosecond)
          << drift << " " << i;
    }
  }
}

// Whatever a peer says.
TEST(RoundTrip, AQueueIsNeverLongerThanTheRoundTripAllows) {
  RoundTrip rtt;
  for (std::uint32_t i = 0; i < 10'000; ++i) {
    const Duration time = (100 + i * 37 % 5000) * kMicrosecond;
    rtt.on_sample(i * kMillisecond, time, 0, i * 2654435761u, false);
    ASSERT_GE(rtt.queue(), 0);
    ASSERT_LE(rtt.queue(), time - rtt.least());
  }
}

TEST(RoundTrip, TheProbeTimeoutCoversWhatThePeerHoldsBackAndBacksOff) {
  RoundTrip rtt;
  EXPECT_EQ(rtt.probe_timeout(0), RoundTrip::kInitial);
  for (int i = 0; i < 50; ++i) on_sample(rtt, i, 100 * kMicrosecond, 0, false);
  EXPECT_EQ(rtt.probe_timeout(0), RoundTrip::kFloor);
  EXPECT_EQ(rtt.probe_timeout(2), 4 * RoundTrip::kFloor);
  EXPECT_EQ(rtt.probe_timeout(60), RoundTrip::kCeiling);
  on_sample(rtt, 50, 20 * kMillisecond, 19 * kMillisecond, false);
  EXPECT_GT(rtt.probe_timeout(0), 19 * kMillisecond);
}

TEST(RoundTrip, AStandingQueueOfOnesOwnNeverBecomesThePath) {
  RoundTrip rtt;
  Time now = 0;
  on_sample(rtt, now, 100 * kMicrosecond, 0, true);
  for (; now < 120 * kSecond; now += 10 * kMillisecond) {
    on_sample(rtt, now, 5 * kMillisecond, 0, false);
  }
  EXPECT_EQ(rtt.least(), 100 * kMicrosecond);
}

TEST(RoundTrip, ALongerPathIsLearntFromPacketsThatTravelAlone) {
  RoundTrip rtt;
  Time now = 0;
  on_sample(rtt, now, 100 * kMicrosecond, 0, true);
  for (; now < 25 * kSecond; now += 10 * kMillisecond) {
    on_sample(rtt, now, (now / kMillisecond % 3 + 30) * kMillisecond, 0, true);
  }
  EXPECT_EQ(rtt.least(), 30 * kMillisecond);
  on_sample(rtt, now, 50 * kMicrosecond, 0, false);
  EXPECT_EQ(rtt.least(), 50 * kMicrosecond) << "a shorter one is believed at once";
}

struct TailProbeTest : ::testing::Test {
  TailProbeTest() {
    for (int i = 0; i < 50; ++i) on_sample(rtt, i, 100 * kMicrosecond, 0, false);
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
