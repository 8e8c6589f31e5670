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

constexpr Duration kBase = 100 * kMicrosecond;

// One flow that is all there is on a cable, or meets a queue of others' there, and loses packets at
// random, after so many rounds without, and so many at a time.
struct Alone {
  double packets_per_ms = 8300;  // 100 Gbit/s
  double loss = 0;
  Duration others = 0;  // queue
  Duration waits = 0;   // for cores: so long at most, some packets of every round
  int lossless = 0;
  std::uint32_t run = 1;
};
CongestionState after_rounds(const CongestionOps& ops, int rounds, const Alone& cable) {
  SimRandom random(4);
  CongestionState state;
  ops.start(state);
  std::uint64_t acked = 0;
  Time now = 0;
  for (int i = 0; i < rounds; ++i) {
    const auto packets = static_cast<std::uint32_t>(state.window);
    const auto queue = static_cast<Duration>(packets / cable.packets_per_ms * kMillisecond) - kBase;
    AckSample sample;
    sample.queue = std::max<Duration>(queue, 0) + cable.others;
    sample.smoothed_rtt = kBase + sample.queue;
    sample.now = now += sample.smoothed_rtt;
    sample.limited = true;
    sample.rate = cable.packets_per_ms / kMillisecond;
    for (std::uint32_t p = 0; i >= cable.lossless && p < packets; p += cable.run) {
      if (!random.chance(cable.loss)) continue;
      sample.lost += std::min(cable.run, packets - p);
      ++sample.lost_runs;
    }
    if (cable.waits > 0) {
      AckSample late = sample;
      late.lost = 0;
      late.queue += random.between(0, cable.waits);
      ops.on_ack(state, late);
    }
    acked += packets;
    sample.largest = acked;
    sample.next_number = acked + packets;
    if (sample.lost > 0) ops.on_loss(state, sample);
    sample.packets = packets - sample.lost;
    ops.on_ack(state, sample);
  }
  return state;
}

// Nor 5%, which is more than any network in order loses.
TEST(Swift, RandomLossDoesNotHoldItBack) {
  for (const double loss : {0.001, 0.01, 0.05}) {
    SCOPED_TRACE(loss);
    EXPECT_GT(after_rounds(kSwift, 200, {.loss = loss}).window, 1000);
  }
}
// Windows of some milliseconds, as where processes wait for cores, at 1 Gbit/s.
TEST(Swift, NorDoesOneThatBeginsLater) {
  for (const double loss : {0.01, 0.05}) {
    SCOPED_TRACE(loss);
    const Alone cable{.packets_per_ms = 83, .loss = loss, .waits = 300 * kMicrosecond};
    Alone later = cable;
    later.lossless = 100;
    EXPECT_GT(after_rounds(kSwift, 400, cable).window, 200);
    EXPECT_GT(after_rounds(kSwift, 400, later).window, 200);
  }
}
// A loss takes all of what the kernel hands to a cable at once.
TEST(Swift, NorDoesOneOfWholeSuperPackets) {
  for (const double loss : {0.01, 0.05}) {
    SCOPED_TRACE(loss);
    EXPECT_GT(
        after_rounds(kSwift, 400, {.packets_per_ms = 83, .loss = loss, .lossless = 100, .run = 42})
            .window,
        200);
  }
}
TEST(Swift, HeavyLossDoes) {
  EXPECT_LT(after_rounds(kSwift, 200, {.loss = 0.3}).window, 2 * kMinWindow);
}
TEST(Swift, AQueueOfOthersDoesWhereTheyGiveWayToo) {
  const Alone cable{.others = 12 * kMillisecond};
  EXPECT_LT(after_rounds(kSwift, 40, cable).window, kInitialWindow);
}
// They would take all.
TEST(Swift, AQueueOfOthersDoesNotWhereTheyNeverGiveWay) {
  const Alone cable{.others = 40 * kMillisecond};
  for (const int rounds : {20, 40, 80, 160}) {
    EXPECT_GT(after_rounds(kSwift, rounds, cable).window, kInitialWindow / 2) << rounds;
  }
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
    delay_ = std::max(kBase, static_cast<Duration>(on_the_way / rate_ * kMillisecond));
    sample.queue = delay_ - kBase;
    sample.limited = true;
    sample.largest = sample.next_number = ++rounds_;
    for (CongestionState& flow : flows_) {
      sample.packets = static_cast<std::uint32_t>(flow.window);
      kSwift.on_ack(flow, sample);
    }
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
  CongestionState state = after_rounds(kCubic, 5, {});
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
  EXPECT_EQ(congestion_named("swift").value(), &kSwift);
  EXPECT_EQ(congestion_named("paced_swift").value(), &kPacedSwift);
  EXPECT_EQ(congestion_named("cubic").value(), &kCubic);
  EXPECT_EQ(congestion_named("reno").status().message(),
            "\"reno\" is unknown: swift, paced_swift or cubic");
}

}  // namespace
}  // namespace taco::harp
