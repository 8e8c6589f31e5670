// Two or more sessions over a simulated network, one behaviour at a time.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <functional>
#include <vector>

#include "support/sim_cluster.h"
#include "support/sim_transfer.h"

namespace taco::harp {
namespace {

TEST(Session, DeliversMessagesOfAllSizesWhicheverSideComesFirst) {
  for (const bool receive_first : {true, false}) {
    for (const std::size_t bytes :
         {0ul, 1ul, 16ul, 1144ul, 1145ul, 1440ul, 1441ul, 2880ul, 100'000ul, 3'000'001ul}) {
      SimCluster cluster(2, 1, {});
      Transfer transfer(5, bytes);
      if (receive_first) cluster[1].matcher(0).recv(transfer.recv);
      if (receive_first) cluster.run(10 * kMillisecond, [] { return false; });
      cluster[0].matcher(1).send(transfer.send);
      if (!receive_first) cluster.run(10 * kMillisecond, [] { return false; });
      if (!receive_first) cluster[1].matcher(0).recv(transfer.recv);
      ASSERT_TRUE(cluster.run(5 * kSecond, [&] { return transfer.done(); })) << bytes;
      transfer.check();
      EXPECT_EQ(cluster[0].counters().retransmits, 0u);
      EXPECT_EQ(cluster[1].sim_nic().overflows(), 0u);
    }
  }
}

// Below an MTU of 1,280, that of the hosts' interfaces.
TEST(Session, NoSegmentIsLongerThanWhatLeavesWhole) {
  for (const Security security : {Security::kNone, Security::kAuth, Security::kEncrypt}) {
    for (const std::size_t mtu : {576ul, 800ul, 1'000ul, 1'279ul}) {
      SCOPED_TRACE(std::to_string(mtu) + " " + name_of(security));
      SimCluster cluster(2, 1, {}, {.whole_datagram = mtu - 28});
      for (const std::uint32_t node : {0u, 1u}) cluster[node].set_security(security);
      std::size_t longest = 0, fragmented = 0;
      cluster.network().set_tap([&](const SimNetwork::Departure& sent) {
        if (sent.bytes.size() > mtu - 28) return void(++fragmented);
        longest = std::max(longest, sent.bytes.size());
      });
      Transfer transfer(5, 300'000);
      cluster[1].matcher(0).recv(transfer.recv);
      cluster[0].matcher(1).send(transfer.send);
      ASSERT_TRUE(cluster.run(5 * kSecond, [&] { return transfer.done(); }));
      transfer.check();
      EXPECT_LE(fragmented, 10u) << "hellos";
      EXPECT_GT(longest, mtu - 28 - wire::kGranule);
    }
  }
}

TEST(Session, GoodbyeIsAcknowledgedAndBothSidesFallQuiet) {
  SimCluster cluster(2, 1, {});
  Transfer transfer(5, 50'000);
  cluster[1].matcher(0).recv(transfer.recv);
  cluster[0].matcher(1).send(transfer.send);
  cluster[0].leave();
  ASSERT_TRUE(cluster.run(
      5 * kSecond, [&] { return transfer.done() && !cluster[0].busy() && !cluster[1].busy(); }));
  transfer.check();
  cluster[1].leave();
  EXPECT_TRUE(cluster.run(cluster.now() + kSecond, [&] { return !cluster[1].busy(); }));
}

// Sends `count` messages of `bytes` from node 0 to node 1, all at once; virtual seconds it took.
double stream(SimCluster& cluster, std::size_t count, std::size_t bytes,
              const std::function<void()>& disturb = nullptr) {
  std::deque<Transfer> transfers;
  const Time start = cluster.now();
  for (std::size_t i = 0; i < count; ++i) {
    Transfer& transfer = transfers.emplace_back(100 + i, bytes);
    cluster[1].matcher(0).recv(transfer.recv);
    cluster[0].matcher(1).send(transfer.send);
  }
  EXPECT_TRUE(cluster.run(
      start + 60 * kSecond,
      [&] {
        return std::all_of(transfers.begin(), transfers.end(),
                           [](const Transfer& transfer) { return transfer.done(); });
      },
      disturb));
  for (const Transfer& transfer : transfers) transfer.check();
  return static_cast<double>(cluster.now() - start) / kSecond;
}

SimFaults gigabit() {
  SimFaults faults;
  faults.bytes_per_second = 1.25e8;
  faults.receive_buffer = 8 << 20;
  faults.longest_queue = 5 * kMillisecond;
  return faults;
}

TEST(Session, FillsTheWireAndSendsNothingTwiceOnAFabricWithoutLoss) {
  SimCluster cluster(2, 1, gigabit());
  const double seconds = stream(cluster, 16, 1 << 20);
  EXPECT_LT(seconds, 1.05 * (16 << 20) * (1472.0 / 1440) / 1.25e8);
  EXPECT_EQ(cluster[0].counters().retransmits, 0u);
}

TEST(Session, StallsOfEitherSideCauseNoRetransmission) {
  SimCluster cluster(2, 1, gigabit());
  SimRandom random(3);
  int stalls = 0;
  stream(cluster, 16, 1 << 20, [&] {
    if (!random.chance(0.02)) return;
    ++stalls;
    cluster[static_cast<std::uint32_t>(random.below(2))].stall_until(
        cluster.now() + random.between(kMillisecond, 30 * kMillisecond));
  });
  EXPECT_GT(stalls, 5);
  EXPECT_EQ(cluster[0].counters().retransmits, 0u);
  EXPECT_EQ(cluster[1].counters().duplicates, 0u);
}

TEST(Session, RandomLossOfOnePercentCostsLittleMoreThanOnePercent) {
  SimFaults faults = gigabit();
  faults.loss = 0.01;
  SimCluster cluster(2, 1, faults);
  const double seconds = stream(cluster, 16, 1 << 20);
  EXPECT_LT(seconds, 1.15 * (16 << 20) * (1472.0 / 1440) / 1.25e8);
  EXPECT_GT(cluster[0].counters().retransmits, 50u);
  EXPECT_LT(cluster[0].counters().spurious_retransmits, 5u);
}

TEST(Session, ManySendersNeverOverflowASmallReceiveBuffer) {
  SimFaults faults;
  faults.receive_buffer = 212'992;
  faults.gro = false;
  SimCluster cluster(9, 1, faults);
  std::deque<Transfer> transfers;
  for (std::uint32_t from = 1; from < 9; ++from) {
    Transfer& transfer = transfers.emplace_back(from, 300'000);
    cluster[0].matcher(from).recv(transfer.recv);
    cluster[from].matcher(0).send(transfer.send);
  }
  SimRandom random(8);
  EXPECT_TRUE(cluster.run(
      60 * kSecond,
      [&] {
        return std::all_of(transfers.begin(), transfers.end(),
                           [](const Transfer& transfer) { return transfer.done(); });
      },
      [&] {
        if (random.chance(0.01)) cluster[0].stall_until(cluster.now() + 20 * kMillisecond);
      }));
  for (const Transfer& transfer : transfers) transfer.check();
  EXPECT_EQ(cluster[0].sim_nic().overflows(), 0u);
}

TEST(Session, ASilentPeerIsLostAfterTheDeadlineAndOnlyWhileSomethingIsExpected) {
  SimCluster cluster(2, 1, {});
  Transfer warm_up(1, 100), waiting(2, 100);
  cluster[1].matcher(0).recv(warm_up.recv);
  cluster[0].matcher(1).send(warm_up.send);
  ASSERT_TRUE(cluster.run(kSecond, [&] { return warm_up.done(); }));
  cluster[1].stall_until(kNever);
  EXPECT_FALSE(
      cluster.run(cluster.now() + 60 * kSecond, [&] { return cluster[0].session(1)->ended(); }));
  const Time start = cluster.now();
  cluster[0].matcher(1).recv(waiting.recv);
  ASSERT_TRUE(cluster.run(start + 15 * kSecond, [&] { return waiting.received.calls > 0; }));
  EXPECT_EQ(waiting.received.status.code(), Code::kPeerLost);
  ASSERT_NE(waiting.received.status.peer_loss(), nullptr);
  EXPECT_NE(waiting.received.status.peer_loss()->address.find("node 1"), std::string::npos);
  EXPECT_GT(waiting.received.status.peer_loss()->last_heard_s, 8);
  EXPECT_GT(cluster.now() - start, 8 * kSecond);
}

TEST(Session, APeerThatNeverAnswersIsLostToo) {
  SimCluster cluster(2, 1, {});
  cluster[1].stall_until(kNever);
  Transfer transfer(1, 100'000);
  cluster[0].matcher(1).recv(transfer.recv);
  ASSERT_TRUE(cluster.run(15 * kSecond, [&] { return transfer.received.calls > 0; }));
  EXPECT_EQ(transfer.received.status.code(), Code::kPeerLost);
  EXPECT_NE(transfer.received.status.message().find("ever"), std::string::npos);
}

TEST(Session, OurOwnStallBlamesNobody) {
  SimCluster cluster(2, 1, {});
  Transfer transfer(1, 100);
  cluster[0].matcher(1).recv(transfer.recv);
  ASSERT_FALSE(cluster.run(kSecond, [] { return false; }));
  cluster[0].stall_until(cluster.now() + 30 * kSecond);
  ASSERT_FALSE(cluster.run(cluster.now() + 32 * kSecond, [] { return false; }));
  EXPECT_EQ(transfer.received.calls, 0);
  cluster[1].matcher(0).send(transfer.send);
  ASSERT_TRUE(cluster.run(cluster.now() + kSecond, [&] { return transfer.done(); }));
  transfer.check();
}

TEST(Session, BothSidesMayConnectAtOnceAndStrayPacketsChangeNothing) {
  SimCluster cluster(2, 1, {});
  Transfer there(1, 5000), back(2, 5000);
  back.send.key = back.recv.key = {2, 2};
  cluster[0].matcher(1).send(there.send);
  cluster[1].matcher(0).recv(there.recv);
  cluster[1].matcher(0).send(back.send);
  cluster[0].matcher(1).recv(back.recv);
  ASSERT_TRUE(cluster.run(kSecond, [&] { return there.done() && back.done(); }));
  there.check();
  back.check();
  Session& session = *cluster[0].session(1);
  const std::uint64_t before = cluster[0].counters().checksum_failures;
  wire::Header header = wire::frames_header(wire::Type::kControl, {session.connection_id(), 3}, 0);
  header.crc = 12345;
  std::array<std::byte, sizeof header> bytes;
  std::memcpy(bytes.data(), &header, sizeof header);
  const Endpoint source = SimNetwork::endpoint(1);
  session.on_packets({bytes, 0, &source, 0});
  EXPECT_EQ(cluster[0].counters().checksum_failures, before + 1);
  EXPECT_FALSE(session.ended());
}

TEST(Session, IdleItHoldsLessThanFourKilobytesHoweverBusyItWas) {
  SimCluster cluster(2, 1, {});
  stream(cluster, 300, 20'000);
  stream(cluster, 300, 100);
  cluster.run(cluster.now() + 5 * kSecond, [] { return false; });
  EXPECT_LE(cluster[0].session(1)->memory_bytes() + sizeof(Matcher), 4096u);
  EXPECT_LE(cluster[1].session(0)->memory_bytes() + sizeof(Matcher), 4096u);
}

// Its session is given what its matcher, which keeps to the quota, still holds.
TEST(Session, APeerThatSendsBeyondItsQuotaIsLostWithTheReason) {
  SimCluster cluster(2, 1, {});
  Transfer known(1, 8);
  cluster[0].matcher(1).send(known.send);
  cluster[1].matcher(0).recv(known.recv);
  ASSERT_TRUE(cluster.run(kSecond, [&] { return known.done(); }));
  std::deque<Transfer> excess;
  for (std::uint64_t i = 0; i <= kEagerQuotaMessages; ++i) {
    SendRequest& send = excess.emplace_back(100 + i, 8).send;
    cluster[0].matcher(1).send(send);
    if (send.stage.is(SendStage::kKept)) cluster[0].session(1)->eager(send);
  }
  ASSERT_TRUE(cluster.run(5 * kSecond, [&] { return cluster[1].matcher(0).lost(); }));
  // The first, though received, has not been reported to its sender and counts as well.
  EXPECT_EQ(cluster[1].matcher(0).unmatched(), kEagerQuotaMessages - 1);
  Transfer late(2, 8);
  cluster[1].matcher(0).recv(late.recv);
  ASSERT_TRUE(cluster.run(cluster.now() + kSecond, [&] { return late.received.calls > 0; }));
  EXPECT_NE(late.received.status.message().find("quotas"), std::string::npos);
}

}  // namespace
}  // namespace taco::harp
