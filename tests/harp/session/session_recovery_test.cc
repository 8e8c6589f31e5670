// Sessions and what goes wrong: losses, stalls of the own loop, peers that go for good.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <vector>

#include "support/sim_cluster.h"
#include "support/sim_transfer.h"

namespace taco::harp {
namespace {

SimFaults gigabit() {
  SimFaults faults;
  faults.bytes_per_second = 1.25e8;
  faults.receive_buffer = 8 << 20;
  faults.longest_queue = 5 * kMillisecond;
  return faults;
}

// Transfers from node 0 to node 1.
struct Flow {
  SimCluster& cluster;
  std::deque<Transfer> transfers;

  Transfer& add(std::uint64_t tag, std::size_t bytes) {
    Transfer& transfer = transfers.emplace_back(tag, bytes);
    cluster[1].matcher(0).recv(transfer.recv);
    cluster[0].matcher(1).send(transfer.send);
    return transfer;
  }
  bool done() const {
    return std::all_of(transfers.begin(), transfers.end(),
                       [](const Transfer& transfer) { return transfer.done(); });
  }
  bool run(Duration limit) {
    return cluster.run(cluster.now() + limit, [&] { return done(); });
  }
};

TEST(SessionRecovery, AMessageThatLostASegmentDoesNotWaitForNewerOnes) {
  SimCluster cluster(2, 1, gigabit());
  Flow flow{cluster, {}};
  flow.add(1, 100);
  ASSERT_TRUE(flow.run(kSecond));
  Transfer& first = flow.add(2, 20'000);
  for (std::uint64_t tag = 3; tag < 43; ++tag) flow.add(tag, 200'000);
  // Packets wait for the wire before they are lost on it.
  cluster.network().kill_link(0, 1, cluster.now() + 200 * kMicrosecond);
  ASSERT_TRUE(cluster.run(cluster.now() + 10 * kSecond, [&] { return first.done(); }));
  EXPECT_GT(cluster[0].counters().retransmits, 0u);
  const auto done = std::count_if(flow.transfers.begin(), flow.transfers.end(),
                                  [](const Transfer& transfer) { return transfer.done(); });
  EXPECT_LT(done, 20) << "of 40 newer ones";
  ASSERT_TRUE(flow.run(10 * kSecond));
  for (const Transfer& transfer : flow.transfers) transfer.check();
}

TEST(SessionRecovery, AProbeIsNotLateByTheStallThatCameBefore) {
  SimCluster cluster(2, 1, {});
  Flow flow{cluster, {}};
  flow.add(1, 100);
  ASSERT_TRUE(flow.run(kSecond));
  // The acknowledgement of one message arrives during a stall; the other message is lost.
  flow.add(2, 100);
  cluster.run(cluster.now() + 100 * kMicrosecond, [] { return false; });
  cluster.network().kill_link(0, 1, cluster.now() + kMillisecond);
  flow.add(3, 100);
  cluster.run(cluster.now() + 50 * kMicrosecond, [] { return false; });
  const Time back = cluster.now() + 5 * kSecond;
  cluster[0].stall_until(back);
  ASSERT_TRUE(flow.run(20 * kSecond));
  EXPECT_LT(cluster.now() - back, 100 * kMillisecond);
  for (const Transfer& transfer : flow.transfers) transfer.check();
}

TEST(SessionRecovery, StallsThatFollowEachOtherDoNotPutOffALossForEver) {
  SimCluster cluster(2, 1, gigabit());
  Flow flow{cluster, {}};
  flow.add(1, 100);
  ASSERT_TRUE(flow.run(kSecond));
  cluster.network().kill_link(0, 1, cluster.now() + 50 * kMicrosecond);
  flow.add(2, 100);
  cluster.run(cluster.now() + 100 * kMicrosecond, [] { return false; });
  flow.add(3, 100);
  Time next_stall = cluster.now() + 500 * kMicrosecond;
  const Time start = cluster.now();
  ASSERT_TRUE(cluster.run(
      start + 10 * kSecond, [&] { return flow.transfers[1].done() && flow.transfers[2].done(); },
      [&] {
        if (cluster.now() < next_stall) return cluster.wake_at(next_stall);
        cluster[0].stall_until(cluster.now() + 3 * kMillisecond);
        next_stall = cluster.now() + 3500 * kMicrosecond;
      }));
  EXPECT_LT(cluster.now() - start, 100 * kMillisecond);
}

// There are more holes than an acknowledgement has room for, so some are told before the rest is
// heard.
TEST(SessionRecovery, WhatHasArrivedAmongManyHolesIsNotSentAgain) {
  SimFaults faults = gigabit();
  faults.bytes_per_second = 1.25e9;
  faults.receive_buffer = 32 << 20;
  faults.gso = faults.gro = false;
  SimCluster cluster(2, 1, faults);
  Flow flow{cluster, {}};
  for (std::uint64_t tag = 1; tag < 257; ++tag) flow.add(tag, 1 << 20);
  Time next_stall = 40 * kMillisecond;
  ASSERT_TRUE(cluster.run(
      60 * kSecond, [&] { return flow.done(); },
      [&] {
        if (cluster.now() < next_stall) return cluster.wake_at(next_stall);
        cluster.network().faults().loss = 0.05;
        cluster[1].stall_until(cluster.now() + 15 * kMillisecond);
        next_stall = cluster.now() + 40 * kMillisecond;
      }));
  EXPECT_LT(cluster[0].counters().retransmits, cluster.network().counts().lost);
}

// The congestion control takes the longer path for a queue, until it has seen that it is none.
TEST(SessionRecovery, APathThatBecomesLongerIsFilledAgain) {
  SimFaults faults = gigabit();
  faults.latency = 50 * kMicrosecond;
  SimCluster cluster(2, 1, faults);
  Flow flow{cluster, {}};
  flow.add(1, 1 << 20);
  ASSERT_TRUE(flow.run(kSecond));
  cluster.network().faults().latency = 15 * kMillisecond;
  std::uint64_t tag = 2;
  const Time change = cluster.now();
  while (cluster.now() - change < 25 * kSecond) {
    flow.add(tag++, 20'000);
    ASSERT_TRUE(flow.run(60 * kSecond));
    flow.transfers.clear();
  }
  const Time start = cluster.now();
  for (int i = 0; i < 32; ++i) flow.add(tag++, 1 << 20);
  ASSERT_TRUE(flow.run(60 * kSecond));
  EXPECT_LT(cluster.now() - start, 2 * kSecond) << "of 0.27 s for the wire";
}

TEST(SessionRecovery, WhatDeadPeersWereGrantedGoesBackToTheSurvivors) {
  constexpr std::uint32_t kNodes = 12;
  SimFaults faults = gigabit();
  faults.receive_buffer = 425'984;
  SimCluster undisturbed(2, 1, faults), cluster(kNodes, 1, faults);
  Transfer lone(1, 100'000);
  undisturbed[0].matcher(1).recv(lone.recv);
  undisturbed[1].matcher(0).send(lone.send);
  ASSERT_TRUE(undisturbed.run(5 * kSecond, [&] { return lone.done(); }));

  // Each has a large receive open when it dies.
  std::deque<Transfer> transfers;
  for (std::uint32_t node = 1; node < kNodes; ++node) {
    Transfer& transfer = transfers.emplace_back(node, 1'000'000);
    cluster[0].matcher(node).recv(transfer.recv);
    cluster[node].matcher(0).send(transfer.send);
  }
  cluster.run(2 * kMillisecond, [] { return false; });
  EXPECT_GT(cluster[0].credit().outstanding(), cluster[0].credit().capacity() / 3);
  for (std::uint32_t node = 2; node < kNodes; ++node) {
    cluster[node].stall_until(kNever);
    cluster[0].session(node)->declare_lost(Status("died", PeerLoss{}));
  }
  ASSERT_TRUE(cluster.run(20 * kSecond, [&] { return transfers[0].done(); }));
  transfers[0].check();
  cluster.run(cluster.now() + kSecond, [] { return false; });
  const CreditPool& pool = cluster[0].credit();
  EXPECT_EQ(pool.share(), undisturbed[0].credit().share());
  EXPECT_LE(pool.outstanding(), pool.capacity());
  EXPECT_FALSE(pool.starving());
}

// One that nobody here waits for: it is not even missed.
class NeverMetTest : public testing::Test {
 protected:
  // The first has granted the second something, which stands still from then on.
  void SetUp() override {
    cluster[1].matcher(0);
    ASSERT_TRUE(cluster.run(kSecond, [&] { return cluster[0].credit().outstanding() > 0; }));
    cluster[1].stall_until(kNever);
    ASSERT_FALSE(cluster[0].session(1)->established());
  }
  void run(Duration time) {
    cluster.run(cluster.now() + time, [] { return false; });
  }

  SimCluster cluster{2, 1, gigabit()};
};

TEST_F(NeverMetTest, APeerThatDiesHoldsNothingOnceItsTimeIsOver) {
  run(9 * kSecond);
  EXPECT_GT(cluster[0].credit().outstanding(), 0u) << "it may only be slow";
  run(3 * kSecond);
  EXPECT_EQ(cluster[0].credit().outstanding(), 0u);
  const std::uint64_t packets = cluster[0].counters().packets_sent;
  const std::uint64_t turns = cluster[0].turns();
  run(1000 * kSecond);
  EXPECT_GT(cluster[0].counters().packets_sent, packets);
  EXPECT_EQ(cluster[0].credit().outstanding(), 0u) << "what is said to it grants nothing";
  EXPECT_LE(cluster[0].turns() - turns, 250u) << "more often than it says hello";
}

TEST_F(NeverMetTest, APeerThatComesBackIsGrantedSomethingAgain) {
  run(20 * kSecond);
  ASSERT_EQ(cluster[0].credit().outstanding(), 0u);
  cluster[1].stall_until(cluster.now());
  Transfer transfer(1, 100'000);
  cluster[1].matcher(0).send(transfer.send);
  cluster[0].matcher(1).recv(transfer.recv);
  ASSERT_TRUE(cluster.run(cluster.now() + 5 * kSecond, [&] { return transfer.done(); }));
  transfer.check();
  EXPECT_GT(cluster[0].credit().outstanding(), 0u);
}

TEST(SessionRecovery, AnEndedSessionHoldsNothing) {
  SimCluster cluster(2, 1, gigabit());
  Flow flow{cluster, {}};
  for (std::uint64_t tag = 1; tag < 20; ++tag) flow.add(tag, tag % 2 == 0 ? 100 : 1'000'000);
  cluster.run(3 * kMillisecond, [] { return false; });
  for (std::uint32_t node : {0u, 1u}) {
    cluster[node].session(1 - node)->declare_lost(Status("died", PeerLoss{}));
  }
  cluster.run(cluster.now() + kMillisecond, [] { return false; });
  for (std::uint32_t node : {0u, 1u}) {
    EXPECT_LE(cluster[node].session(1 - node)->memory_bytes(), 4096u);
    EXPECT_EQ(cluster[node].credit().outstanding(), 0u);
  }
}

// Both sides post at once, so the receiver asks before it has heard of the offer; where the offer
// is lost or late, the data overtake it, and it comes when its message has been received long
// since.
TEST(SessionRecovery, AnOfferThatItsOwnMessageHasOvertakenIsNotKept) {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    SimFaults faults = gigabit();
    faults.loss = 0.1;
    faults.duplication = 0.1;
    faults.reordering = 0.2;
    SimCluster cluster(2, seed, faults);
    // Several times as many as a group may have lying unmatched.
    for (std::uint64_t tag = 1; tag <= 1000; ++tag) {
      Transfer transfer(tag, 5000 + tag);
      cluster[0].matcher(1).send(transfer.send);
      cluster[1].matcher(0).recv(transfer.recv);
      ASSERT_TRUE(cluster.run(cluster.now() + 10 * kSecond, [&] { return transfer.done(); }));
      transfer.check();
      if (testing::Test::HasFailure()) return;
    }
    cluster.run(cluster.now() + 5 * kSecond, [] { return false; });
    EXPECT_EQ(cluster[1].matcher(0).kept_for_peer(), 0u) << seed;
    EXPECT_FALSE(cluster[1].matcher(0).is_waiting());
  }
}

}  // namespace
}  // namespace taco::harp
