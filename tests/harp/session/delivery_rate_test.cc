#include "harp/session/delivery_rate.h"

#include <gtest/gtest.h>

namespace taco::harp {
namespace {

constexpr Duration kBusy = kMillisecond;
constexpr double kOne = 0.1 / kMicrosecond;  // packets a nanosecond: 100 a millisecond

// Packets arrive, so many a millisecond, and every so many of them are acknowledged.
struct Arrivals {
  DeliveryRate delivery;
  std::uint64_t number = 1;
  double us = 4'294'000'000;  // the peer's clock is about to begin anew
  Time now = kSecond;

  double rate() const { return delivery.rate(now); }
  void come(int packets, double per_ms, Duration queue = kBusy, std::uint32_t under_way = 0,
            Duration round_trip = kMillisecond) {
    for (int i = 1; i <= packets; ++i) {
      ++number;
      us += 1000 / per_ms;
      now += static_cast<Duration>(1000 / per_ms * kMicrosecond);
      if (i % 48 != 0) continue;
      delivery.on_arrival(now, {.number = number,
                                .at_us = static_cast<std::uint32_t>(static_cast<std::uint64_t>(us)),
                                .queue = queue,
                                .under_way = under_way,
                                .round_trip = round_trip});
    }
  }
};

TEST(DeliveryRate, IsHowFastPacketsArrive) {
  Arrivals arrivals;
  EXPECT_EQ(arrivals.rate(), 0);
  arrivals.come(1000, 100);
  EXPECT_NEAR(arrivals.rate() / kOne, 1, 0.02);
  arrivals.come(5000, 20);
  EXPECT_NEAR(arrivals.rate() / kOne, 0.2, 0.05) << "and follows that";
}

TEST(DeliveryRate, IsNotKnownOfASenderThatHasLittleToSend) {
  Arrivals arrivals;
  arrivals.come(1000, 3, 0);
  EXPECT_EQ(arrivals.rate(), 0);
  arrivals.come(1000, 100);
  arrivals.come(480, 3, 0);
  EXPECT_NEAR(arrivals.rate() / kOne, 1, 0.02);
}

// The time in between, in which nothing was sent, is no part of an interval.
TEST(DeliveryRate, SurvivesPauses) {
  Arrivals arrivals;
  for (int i = 0; i < 20; ++i) {
    arrivals.us += 1e5;
    arrivals.now += 100 * kMillisecond;
    arrivals.come(48, 100, 0);
    arrivals.come(480, 100);
  }
  EXPECT_NEAR(arrivals.rate() / kOne, 1, 0.02);
}

// So little is given to it that there is no queue: but that is there in no time.
TEST(DeliveryRate, APathThatWasSlowOnceIsSeenToBeFast) {
  Arrivals arrivals;
  arrivals.come(1000, 5);
  EXPECT_NEAR(arrivals.rate() / kOne, 0.05, 0.01);
  arrivals.come(96, 30, 0, 48, 500 * kMicrosecond);
  EXPECT_NEAR(arrivals.rate() / kOne, 0.96, 0.02);
}

// As an acknowledgement is that another one has overtaken.
TEST(DeliveryRate, LateNewsIsNone) {
  Arrivals arrivals;
  arrivals.come(1000, 100);
  arrivals.number -= 500;
  arrivals.come(192, 50);
  EXPECT_NEAR(arrivals.rate() / kOne, 1, 0.02);
}

TEST(DeliveryRate, IsForgotten) {
  Arrivals arrivals;
  arrivals.come(1000, 20);
  EXPECT_NEAR(arrivals.rate() / kOne, 0.2, 0.01);
  arrivals.come(100'000, 100, 0);  // for a second without a queue, so that nobody knows
  EXPECT_EQ(arrivals.rate(), 0);
  arrivals.come(1000, 10);
  EXPECT_NEAR(arrivals.rate() / kOne, 0.1, 0.01);
}

// Packets that a peer's process reads in one go after it has stood still came at no such rate,
// unless they are more than an interval takes.
TEST(DeliveryRate, ABatchIsNoRate) {
  Arrivals arrivals;
  for (int i = 0; i < 200; ++i) {
    arrivals.us += 950;
    arrivals.now += 950 * kMicrosecond;
    arrivals.come(96, 1920);  // in 50 us
  }
  EXPECT_LE(arrivals.rate() / kOne, 2);
}

}  // namespace
}  // namespace taco::harp
