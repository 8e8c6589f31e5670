// Runs of 40 packets leave by a window of 100 packets that makes its round in 10 ms.
#include "harp/session/pacer.h"

#include <gtest/gtest.h>

namespace taco::harp {
namespace {

constexpr Duration kRound = 10 * kMillisecond;
constexpr double kWindow = 100;

// When so many runs have left from `start` on, each as soon as the pacer lets it.
Time leave(Pacer& pacer, Time start, int runs, double rate) {
  Time now = start;
  while (true) {
    EXPECT_TRUE(pacer.admits(now));
    pacer.on_sent(now, 40, rate, kWindow, kRound);
    if (--runs == 0) return now;
    if (pacer.admits(now)) continue;
    EXPECT_FALSE(pacer.on_timer(now)) << "too early";
    now = pacer.deadline();
    EXPECT_TRUE(pacer.on_timer(now));
    EXPECT_EQ(pacer.deadline(), kNever);
  }
}

TEST(Pacer, SpreadsWindowsOverTheirRounds) {
  for (const double rate : {1.0, 1.25, 2.0}) {
    Pacer pacer;
    leave(pacer, kSecond, 1, rate);  // what a long pause has left
    const Time took = leave(pacer, pacer.admits(kSecond) ? kSecond : pacer.deadline(), 51, rate);
    EXPECT_NEAR(static_cast<double>(took - kSecond), 51 * 0.4 * kRound / rate, kRound);
  }
}

TEST(Pacer, WhoIsLateMakesUpForAPartOfARoundOnly) {
  Pacer pacer;
  leave(pacer, kSecond, 10, 1);
  const Time late = kSecond + 100 * kRound;
  EXPECT_TRUE(pacer.admits(late));
  pacer.on_sent(late, 10, 1, kWindow, kRound);
  EXPECT_TRUE(pacer.admits(late)) << "an eighth of a round was missed, a tenth has left";
  pacer.on_sent(late, 10, 1, kWindow, kRound);
  EXPECT_FALSE(pacer.admits(late));
}

TEST(Pacer, ARateOfZeroLetsEverythingLeave) {
  Pacer pacer;
  EXPECT_EQ(leave(pacer, kSecond, 1000, 0), kSecond);
}

}  // namespace
}  // namespace taco::harp
