#include "harp/session/congestion.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "support/sim_random.h"

namespace taco::harp {
namespace {

CongestionState after_rounds(const CongestionOps& ops, int rounds, double loss, Duration rtt) {
  SimRandom random(4);
  CongestionState state;
  ops.start(state);
  std::uint64_t acked = 0;
  Time now = 0;
  for (int i = 0; i < rounds; ++i) {
    now += rtt;
    const auto packets = static_cast<std::uint32_t>(state.window);
    AckSample sample;
    sample.now = now;
    sample.least_rtt = 100 * kMicrosecond;
    sample.smoothed_rtt = sample.rtt = rtt;
    sample.limited = true;
    for (std::uint32_t p = 0; p < packets; ++p) sample.lost += random.chance(loss);
    acked += packets;
    sample.largest = acked;
    sample.next_number = acked + packets;
    if (sample.lost > 0) ops.on_loss(state, sample);
    sample.packets = packets - sample.lost;
    ops.on_ack(state, sample);
  }
  return state;
}

TEST(Swift, RandomLossOfOnePercentDoesNotHoldItBack) {
  EXPECT_GT(after_rounds(kSwift, 20, 0.01, 200 * kMicrosecond).window, 1000);
}
TEST(Swift, AQueueDoes) {
  EXPECT_LT(after_rounds(kSwift, 40, 0, 40 * kMillisecond).window, 2 * kLeastWindow);
}
TEST(Swift, HeavyLossDoes) {
  EXPECT_LT(after_rounds(kSwift, 40, 0.2, 200 * kMicrosecond).window, 2 * kLeastWindow);
}

// Flows on one cable, as a fluid: each has its window under way, and what the cable does not hold
// waits before it.
class Cable {
 public:
  explicit Cable(double packets_per_ms) : rate_(packets_per_ms) {}

  void add(double window) {
    kSwift.start(flows_.emplace_back());
    flows_.back().window = window;
  }
  // One round trip of all.
  void round() {
    double on_the_way = 0;
    for (const CongestionState& flow : flows_) on_the_way += flow.window;
    AckSample sample;
    sample.least_rtt = 100 * kMicrosecond;
    sample.rtt =
        std::max(sample.least_rtt, static_cast<Duration>(on_the_way / rate_ * kMillisecond));
    sample.limited = true;
    sample.largest = sample.next_number = ++rounds_;
    for (CongestionState& flow : flows_) {
      sample.packets = static_cast<std::uint32_t>(flow.window);
      kSwift.on_ack(flow, sample);
    }
    delay_ = sample.rtt;
    now_ += delay_;
  }
  double largest_by_smallest() const {
    const auto [least, most] = std::minmax_element(
        flows_.begin(), flows_.end(), [](auto& a, auto& b) { return a.window < b.window; });
    return most->window / least->window;
  }
  Time now() const { return now_; }
  Duration delay() const { return delay_; }

 private:
  double rate_;
  std::vector<CongestionState> flows_;
  std::uint64_t rounds_ = 0;
  Time now_ = 0;
  Duration delay_ = 0;
};

TEST(Swift, FlowsOnOneCableComeToEqualSharesAndKeepItBusy) {
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    SimRandom random(seed);
    const double rate = std::array{83.0, 830.0, 8300.0}[random.below(3)];  // 1, 10, 100 Gbit/s
    const std::uint64_t flows = 2 + random.below(15);
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + std::to_string(flows) + " flows, " +
                 std::to_string(rate) + " packets a ms");
    Cable cable(rate);
    for (std::uint64_t i = 0; i < flows; ++i) {
      cable.add(16 * std::pow(rate / 2, static_cast<double>(random.below(1000)) / 1000));
    }
    while (cable.now() < 500 * kMillisecond) cable.round();
    while (cable.now() < 1000 * kMillisecond) {
      cable.round();
      ASSERT_LT(cable.largest_by_smallest(), 1.5) << "at " << cable.now();
      ASSERT_GT(cable.delay(), kMillisecond) << "at " << cable.now();
      ASSERT_LT(cable.delay(), 20 * kMillisecond) << "at " << cable.now();
    }
  }
}

TEST(Cubic, LossHoldsItBackAndAnUndoRestoresTheWindow) {
  CongestionState state = after_rounds(kCubic, 5, 0, 200 * kMicrosecond);
  const double before = state.window;
  EXPECT_GT(before, 1000);
  AckSample sample;
  sample.largest = 1'000'000;
  sample.next_number = 1'100'000;
  sample.lost = 1;
  kCubic.on_loss(state, sample);
  EXPECT_NEAR(state.window, before * 0.7, 1);
  kCubic.on_loss(state, sample);
  EXPECT_NEAR(state.window, before * 0.7, 1) << "once a round trip";
  kCubic.undo(state);
  EXPECT_NEAR(state.window, before, 1);
}

TEST(Congestion, IsFoundByName) {
  EXPECT_EQ(congestion_named("swift"), &kSwift);
  EXPECT_EQ(congestion_named("cubic"), &kCubic);
  EXPECT_EQ(congestion_named("reno"), nullptr);
}

}  // namespace
}  // namespace taco::harp
