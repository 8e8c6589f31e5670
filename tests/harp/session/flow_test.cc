#include "harp/session/flow.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "harp/session/congestion.h"
#include "harp/session/loss.h"
#include "support/sim_random.h"

namespace taco::harp {
namespace {

constexpr std::uint64_t kPacketBytes = 2304;

// A peer that sends as much as it is told it may, and believes the newest limit it has heard.
struct Peer {
  Peer(CreditPool& pool, std::uint64_t packet_bytes) : account(pool, packet_bytes) {}
  CreditAccount account;
  std::uint64_t sent = 0, received = 0, believed = CreditAccount::kInitial;
  struct Told {
    std::uint64_t limit;
    std::uint32_t epoch;
  };
  std::deque<Told> on_the_way;
  std::uint32_t heard = 0;
};

TEST(Credit, WhatIsInFlightNeverExceedsThePoolAndNobodyStarves) {
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    SimRandom random(seed);
    const std::uint64_t capacity = 64 + random.below(2000);
    const std::uint64_t peers = 1 + random.below(8);
    CreditPool pool(capacity * kPacketBytes);
    std::deque<Peer> all;
    for (std::uint64_t i = 0; i < peers; ++i) all.emplace_back(pool, kPacketBytes);
    for (int step = 0; step < 5000; ++step) {
      Peer& peer = all[random.below(peers)];
      switch (random.below(6)) {
        case 0:
          peer.account.set_active(random.chance(0.7));
          break;
        case 1:  // it sends, some of it is lost, the last arrives
        case 2:
          if (peer.sent < peer.believed) {
            peer.sent += 1 + random.below(peer.believed - peer.sent);
            if (random.chance(0.9)) peer.received = peer.sent;
            peer.account.on_received(peer.received);
          }
          break;
        case 3:  // what it was told arrives, or is lost and told again
          if (!peer.on_the_way.empty()) {
            const Peer::Told told = peer.on_the_way.front();
            peer.on_the_way.pop_front();
            if (random.chance(0.8) && told.epoch >= peer.heard) {
              peer.heard = told.epoch;
              peer.believed = std::max(told.limit, peer.sent);
              peer.sent = std::max(peer.sent, peer.received) + 1;  // its acknowledgement
              peer.received = peer.sent;
              peer.account.on_received(peer.received);
              peer.account.on_confirmed(told.epoch);
            }
          }
          break;
        default:
          peer.account.refresh();
          peer.on_the_way.push_back({peer.account.limit(), peer.account.epoch()});
      }
      std::uint64_t possible = 0;
      for (const Peer& each : all) {
        if (each.believed > each.received) possible += each.believed - each.received;
      }
      // The least allowance, an acknowledgement, may go beyond a pool that is given away.
      ASSERT_LE(possible, capacity + 12 * peers);
    }
    for (int round = 0; round < 20; ++round) {  // everybody is told and sends everything
      for (Peer& each : all) {
        each.account.set_active(true);
        each.account.refresh();
        each.believed = each.account.limit();
        each.account.on_confirmed(each.account.epoch());
        each.sent = std::max(each.sent, each.believed);
        each.received = each.sent;
        each.account.on_received(each.received);
      }
    }
    for (Peer& each : all) {
      each.account.refresh();
      EXPECT_GE(each.account.limit() - each.received,
                std::min<std::uint64_t>(pool.share() / kPacketBytes / 2, 2));
    }
  }
}

TEST(Credit, AnIdleHolderGivesUpItsShareWhenAnotherWaits) {
  CreditPool pool(1000);
  CreditAccount idle(pool, 1), waiting(pool, 1);
  idle.set_active(true);
  ASSERT_TRUE(idle.refresh());
  EXPECT_GT(pool.outstanding(), 900u);
  idle.set_active(false);
  waiting.set_active(true);
  waiting.refresh();
  EXPECT_TRUE(pool.starving());
  ASSERT_TRUE(idle.refresh());
  EXPECT_TRUE(idle.lowering());
  waiting.refresh();
  EXPECT_LT(waiting.limit(), 200u) << "not before the other has agreed";
  idle.on_confirmed(idle.epoch());
  ASSERT_TRUE(waiting.refresh());
  EXPECT_GT(waiting.limit(), 800u);
  EXPECT_LE(pool.outstanding(), pool.capacity());
}

TEST(Credit, APathOfJumboFramesLeavesTheOthersTheirShare) {
  CreditPool pool(1'000'000);
  CreditAccount jumbo(pool, 10'000), plain(pool, 2'000);
  jumbo.set_active(true);
  plain.set_active(true);
  ASSERT_TRUE(jumbo.refresh());
  ASSERT_TRUE(plain.refresh());
  EXPECT_NEAR(static_cast<double>(jumbo.limit()), 40, 12);
  EXPECT_NEAR(static_cast<double>(plain.limit()), 200, 50);
  EXPECT_LE(pool.outstanding(), pool.capacity());
}

TEST(Credit, WhatPeersHeldThatAreGoneGoesBackToTheOthers) {
  constexpr std::size_t kPeers = 10;
  CreditPool alone(1000), pool(1000);
  CreditAccount undisturbed(alone, 1);
  undisturbed.set_active(true);
  undisturbed.refresh();
  CreditAccount survivor(pool, 1);
  survivor.set_active(true);
  std::deque<CreditAccount> mortals;
  for (std::size_t i = 1; i < kPeers; ++i) mortals.emplace_back(pool, 1).set_active(true);
  for (CreditAccount& mortal : mortals) mortal.refresh();
  survivor.refresh();
  EXPECT_LT(survivor.limit(), 200u);
  for (CreditAccount& mortal : mortals) {
    mortal.close();
    survivor.refresh();
    EXPECT_FALSE(mortal.refresh()) << "the dead ask for nothing";
    mortal.set_active(true);
    mortal.on_received(1'000'000);
  }
  EXPECT_EQ(pool.share(), alone.share());
  EXPECT_GE(survivor.limit(), undisturbed.limit() * 3 / 4);
  EXPECT_EQ(pool.outstanding(), survivor.limit());
}

TEST(Credit, NobodyIsAskedAgainWhileNothingChanges) {
  CreditPool pool(1000);
  CreditAccount holder(pool, 1), waiting(pool, 1);
  holder.set_active(true);
  ASSERT_TRUE(holder.refresh());
  holder.set_active(false);
  waiting.set_active(true);
  waiting.refresh();
  const auto ask = [&] {
    pool.ask_everybody();
    holder.refresh();
    waiting.refresh();
  };
  int rounds = 0;
  for (; pool.starving() && rounds < 100; ++rounds) ask();
  EXPECT_LT(rounds, 5);
  EXPECT_LT(waiting.limit(), 200u) << "it waits for the holder's word";
  holder.on_confirmed(holder.epoch());
  EXPECT_TRUE(pool.starving()) << "there is room";
  ask();
  EXPECT_GT(waiting.limit(), 800u);
  EXPECT_FALSE(pool.starving());
}

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
