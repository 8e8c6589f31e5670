// Packets that ask for an acknowledgement and get one, and packets that neither ask nor cost
// anything.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <deque>
#include <vector>

#include "support/sim_cluster.h"
#include "support/sim_transfer.h"
#include "support/sim_wire.h"

namespace taco::harp {
namespace {

void deliver(SimCluster& cluster, std::uint32_t from, std::uint32_t to, std::uint64_t tag,
             std::size_t bytes) {
  Transfer transfer(tag, bytes);
  cluster[to].matcher(from).recv(transfer.recv);
  cluster[from].matcher(to).send(transfer.send);
  ASSERT_TRUE(cluster.run(cluster.now() + 20 * kSecond, [&] { return transfer.done(); }));
  transfer.check();
}

void pass_time(SimCluster& cluster, Duration time) {
  cluster.run(cluster.now() + time, [] { return false; });
}

TEST(Frames, IdleSessionsFallSilentHoweverOftenTheNetworkRepeatsThings) {
  SimFaults faults;
  faults.duplication = 1;
  SimCluster cluster(2, 1, faults);
  deliver(cluster, 0, 1, 1, 100'000);
  deliver(cluster, 1, 0, 2, 100);
  pass_time(cluster, 100 * kMillisecond);
  const std::uint64_t quiet = cluster.network().counts().delivered;
  pass_time(cluster, 30 * kSecond);
  EXPECT_EQ(cluster.network().counts().delivered, quiet);
}

// A receiver's acknowledgements leave it its right to send.
TEST(Frames, AfterManyAcknowledgementsAWantLeavesAtOnce) {
  SimFaults faults;
  faults.latency = 5 * kMillisecond;
  faults.receive_buffer = 8 << 20;
  SimCluster cluster(2, 1, faults);
  // One want, and acknowledgements by the hundred.
  deliver(cluster, 0, 1, 2, 20'000'000);
  pass_time(cluster, kSecond);
  const std::uint64_t probes = cluster[1].counters().probes;
  // A large receive needs a want: half a round trip there, half a round trip for the data.
  const Time before = cluster.now();
  deliver(cluster, 0, 1, 1000, 4'000);
  EXPECT_EQ(cluster[1].counters().probes, probes) << "it had to ask for credit";
  EXPECT_LT(cluster.now() - before, 16 * kMillisecond);
}

struct FramesTest : ::testing::Test {
  FramesTest() : cluster(2, 1, {}), observer(cluster) {
    deliver(cluster, 0, 1, 1, 5000);
    deliver(cluster, 1, 0, 2, 5000);
    pass_time(cluster, kSecond);
    observer.seen.clear();
  }
  // One packet from node 0 to node 1 with these frames.
  void send(std::span<const std::byte> frames, std::uint64_t number, std::uint8_t flags = 0) {
    const std::uint64_t connection = cluster[1].session(0)->connection_id();
    observer.send(0, 1,
                  datagram_of(wire::frames_header(wire::Type::kControl, {connection, number},
                                                  frames.size(), flags),
                              frames));
  }
  static std::vector<std::byte> frame(int type, std::size_t bytes) {
    std::vector<std::byte> made(3 + bytes);
    made[0] = static_cast<std::byte>(type);
    made[1] = static_cast<std::byte>(bytes);
    return made;
  }
  // Was this number acknowledged by what node 1 has sent meanwhile?
  bool acknowledged(std::uint64_t number) {
    pass_time(cluster, 10 * kMillisecond);
    for (const Datagram& packet : observer.seen_between(1, 0, wire::Type::kControl)) {
      wire::FrameReader reader{std::span(packet).subspan(sizeof(wire::Header))};
      for (wire::Frame frame; reader.next(frame);) {
        if (frame != wire::Frame::kAck) continue;
        for (std::uint32_t i = 0; i < reader.ack.count; ++i) {
          if (reader.ack.ranges[i].first <= number && number <= reader.ack.ranges[i].last) {
            return true;
          }
        }
      }
    }
    return false;
  }
  std::size_t answers() {
    pass_time(cluster, 50 * kMillisecond);
    return observer.seen_between(1, 0, wire::Type::kControl).size();
  }

  SimCluster cluster;
  SimObserver observer;
};

constexpr std::uint64_t kNumber = 1000;  // beyond what node 0 has used

TEST_F(FramesTest, AnUnknownFrameIsAcknowledgedWhenItsTypeAsksForIt) {
  send(frame(77, 20), kNumber);
  EXPECT_TRUE(acknowledged(kNumber));
  EXPECT_EQ(cluster[1].counters().malformed, 0u);
}

TEST_F(FramesTest, AnUnknownFrameThatAsksForNothingIsSkipped) {
  send(frame(201, 20), kNumber, wire::kUncounted);
  send(frame(201, 20), kNumber, wire::kUncounted);
  EXPECT_EQ(answers(), 0u);
  EXPECT_EQ(cluster[1].counters().malformed, 0u);
}

TEST_F(FramesTest, WhatFollowsAnUnknownFrameIsRead) {
  auto frames = frame(78, 5);
  const auto ping = frame(static_cast<int>(wire::Frame::kPing), 0);
  frames.insert(frames.end(), ping.begin(), ping.end());
  send(frames, kNumber);
  EXPECT_TRUE(acknowledged(kNumber));
}

TEST_F(FramesTest, ACopyOfWhatAsksIsAnsweredAndACopyOfTheAnswerIsNot) {
  send(frame(static_cast<int>(wire::Frame::kPing), 0), kNumber);
  EXPECT_EQ(answers(), 1u);
  send(frame(static_cast<int>(wire::Frame::kPing), 0), kNumber);
  EXPECT_EQ(answers(), 2u) << "the first answer may have been lost";
  const auto sent = observer.seen_between(1, 0, wire::Type::kControl);
  observer.seen.clear();
  for (int i = 0; i < 10; ++i) observer.send(1, 0, sent.front());
  pass_time(cluster, 50 * kMillisecond);
  EXPECT_TRUE(observer.seen.empty());
}

TEST_F(FramesTest, WhatAsksHasNoPlaceInAnUncountedPacket) {
  send(frame(static_cast<int>(wire::Frame::kPing), 0), kNumber, wire::kUncounted);
  EXPECT_EQ(answers(), 0u);
  EXPECT_EQ(cluster[1].counters().malformed, 1u);
}

TEST_F(FramesTest, UncountedPacketsUseUpNoCredit) {
  const std::uint64_t free = cluster[1].credit().outstanding();
  for (std::uint64_t i = 1; i <= 500; ++i) send(frame(201, 4), i, wire::kUncounted);
  EXPECT_EQ(cluster[1].credit().outstanding(), free);
}

TEST_F(FramesTest, AFrameLongerThanItsPacketIsNotAcknowledged) {
  auto cut = frame(77, 20);
  cut.resize(15);
  send(cut, kNumber);
  EXPECT_FALSE(acknowledged(kNumber));
  EXPECT_EQ(cluster[1].counters().malformed, 1u);
}

TEST_F(FramesTest, AnUnknownRecordIsSkippedAndTheNextIsRead) {
  std::array<std::byte, 64> block, packet;
  auto records = frame(99, 7);
  wire::Writer goodbye(block);
  ASSERT_TRUE(goodbye.goodbye());
  records.insert(records.end(), goodbye.bytes().begin(), goodbye.bytes().end());
  // The serial that comes next: as many blocks as node 0 has sent.
  std::uint32_t serial = 0;
  observer.seen.clear();
  deliver(cluster, 1, 0, 3, 5000);
  for (const Datagram& seen : observer.seen_between(0, 1, wire::Type::kControl)) {
    wire::FrameReader reader{std::span(seen).subspan(sizeof(wire::Header))};
    for (wire::Frame frame; reader.next(frame);) {
      if (frame == wire::Frame::kRecords) serial = reader.serial + 1;
    }
  }
  ASSERT_GT(serial, 0u);
  wire::Writer writer(packet);
  ASSERT_TRUE(writer.records(serial, records));
  send(writer.bytes(), kNumber);
  EXPECT_TRUE(acknowledged(kNumber));
  // The goodbye behind it was heard: what is sent there now goes nowhere.
  EXPECT_EQ(cluster[1].counters().malformed, 0u);
  Transfer late(9, 100);
  cluster[1].matcher(0).recv(late.recv);
  ASSERT_TRUE(cluster.run(cluster.now() + kSecond, [&] { return late.received.calls > 0; }));
  EXPECT_FALSE(late.received.status.ok());
}

}  // namespace
}  // namespace taco::harp
