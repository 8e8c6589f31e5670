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

}  // namespace
}  // namespace taco::harp
