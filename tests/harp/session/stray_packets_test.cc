// Packets that belong to no session here: resets, and what another version of the wire sends.
#include "harp/session/stray_packets.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "support/sim_cluster.h"
#include "support/sim_transfer.h"
#include "support/sim_wire.h"

namespace taco::harp {
namespace {

// As long as probes of a peer are.
Datagram ping_to(std::uint64_t connection, std::uint64_t number = 1) {
  std::array<std::byte, wire::kResetBytes> body;
  wire::Writer writer(body);
  writer.ping();
  writer.padding(writer.room());
  return datagram_of(wire::frames_header(wire::Type::kControl, {connection, number}, writer.size()),
                     writer.bytes());
}

Datagram reset_of(const wire::Header& quoted) {
  return datagram_of(wire::frames_header(wire::Type::kReset, {}, sizeof quoted),
                     std::as_bytes(std::span(&quoted, 1)));
}

void pass_time(SimCluster& cluster, Duration time) {
  cluster.run(cluster.now() + time, [] { return false; });
}

void deliver(SimCluster& cluster, std::uint64_t tag) {
  Transfer transfer(tag, 10'000);
  cluster[1].matcher(0).recv(transfer.recv);
  cluster[0].matcher(1).send(transfer.send);
  ASSERT_TRUE(cluster.run(cluster.now() + 5 * kSecond, [&] { return transfer.done(); }));
  transfer.check();
}

TEST(Reset, QuotesThePacketThatWasForNobody) {
  SimCluster cluster(2, 1, {});
  SimObserver observer(cluster);
  const Datagram packet = ping_to(0x1234);
  observer.send(0, 1, packet);
  const auto answers = observer.seen_between(1, 0, wire::Type::kReset);
  ASSERT_EQ(answers.size(), 1u);
  wire::Packet parsed;
  ASSERT_EQ(wire::parse(answers[0], parsed), wire::Verdict::kGood);
  EXPECT_EQ(parsed.connection, 0u);
  ASSERT_EQ(parsed.body.size(), sizeof(wire::Header));
  EXPECT_EQ(std::memcmp(parsed.body.data(), packet.data(), sizeof(wire::Header)), 0);
}

TEST(Reset, IsNoAnswerToResetsHellosOrDamage) {
  SimCluster cluster(2, 1, {});
  SimObserver observer(cluster);
  observer.send(0, 1, reset_of(header_of(ping_to(0x1234))));
  const wire::Hello hello{};
  observer.send(0, 1,
                datagram_of(wire::frames_header(wire::Type::kHello, {}, sizeof hello),
                            std::as_bytes(std::span(&hello, 1))));
  Datagram damaged = ping_to(0x1234);
  damaged.back() ^= std::byte{1};
  observer.send(0, 1, damaged);
  observer.send(0, 1, Datagram(20));
  EXPECT_TRUE(observer.seen.empty());
  EXPECT_EQ(cluster[1].counters().resets_sent, 0u);
}

TEST(Reset, AreRationed) {
  SimCluster cluster(2, 1, {});
  SimObserver observer(cluster);
  pass_time(cluster, kSecond);
  const auto flood = [&] {
    for (int i = 0; i < 10'000; ++i) observer.send(0, 1, ping_to(0x1234, i));
    return observer.seen_between(1, 0, wire::Type::kReset).size();
  };
  EXPECT_EQ(flood(), StrayPackets::kResetsPerSecond);
  EXPECT_EQ(flood(), StrayPackets::kResetsPerSecond);
  cluster[1].set_now(cluster.now() + kSecond / 10);
  EXPECT_EQ(flood(), StrayPackets::kResetsPerSecond * 11 / 10);
}

TEST(Reset, APeerThatKnowsNothingOfTheSessionIsSuspected) {
  SimCluster cluster(2, 1, {});
  deliver(cluster, 1);
  cluster[1].drop(0);
  Transfer transfer(2, 100);
  cluster[0].matcher(1).send(transfer.send);
  cluster[0].matcher(1).recv(transfer.recv);
  ASSERT_TRUE(cluster.run(cluster.now() + kSecond,
                          [&] { return cluster[0].peer(1).suspicion.resets >= 3; }));
}

TEST(Reset, ThatDoesNotQuoteWhatWasSentIsNotBelieved) {
  SimCluster cluster(2, 1, {});
  SimObserver observer(cluster);
  deliver(cluster, 1);
  const auto sent = observer.seen_between(0, 1, wire::Type::kControl);
  ASSERT_FALSE(sent.empty());
  const wire::Header last = header_of(sent.back());
  wire::Header forged = last;
  forged.connection ^= 1;
  observer.send(1, 0, reset_of(forged));
  forged = last;
  forged.number += 1;
  observer.send(1, 0, reset_of(forged));
  forged = last;
  forged.crc ^= 1;
  observer.send(1, 0, reset_of(forged));
  observer.send(1, 0, reset_of(wire::Header{}));
  EXPECT_EQ(cluster[0].peer(1).suspicion.resets, 0u);
  EXPECT_EQ(cluster[0].counters().resets_received, 4u);
  observer.send(1, 0, reset_of(last));
  EXPECT_EQ(cluster[0].peer(1).suspicion.resets, 1u) << "the test's own packets would be believed";
}

TEST(Reset, OfLongAgoIsNotBelieved) {
  SimCluster cluster(2, 1, {});
  SimObserver observer(cluster);
  deliver(cluster, 1);
  const wire::Header old = header_of(observer.seen_between(0, 1, wire::Type::kControl).front());
  for (std::uint64_t tag = 2; tag < 20; ++tag) deliver(cluster, tag);
  observer.send(1, 0, reset_of(old));
  EXPECT_EQ(cluster[0].peer(1).suspicion.resets, 0u);
}

// What a process of version 1 sends.
Datagram former_hello(SimCluster& cluster, const Secret& secret) {
  std::array<std::byte, 72> body{};
  const std::uint64_t sender = cluster[1].incarnation(), target = cluster[0].incarnation();
  std::memcpy(body.data(), secret.data(), secret.size());
  std::memcpy(body.data() + 16, &sender, 8);
  std::memcpy(body.data() + 24, &target, 8);
  wire::Header header = wire::frames_header(wire::Type::kHello, {}, body.size());
  header.version_and_type = 1 << 4 | static_cast<int>(wire::Type::kHello);
  return datagram_of(header, body);
}

Datagram of_version(std::uint8_t version) {
  wire::Header header = wire::frames_header(wire::Type::kControl, {1, 1}, 0);
  header.version_and_type = static_cast<std::uint8_t>(version << 4 | 3);
  return datagram_of(header, {});
}

TEST(OtherVersions, AFormerHelloEndsTheWaitForItsSenderAndNamesBothVersions) {
  SimCluster cluster(2, 1, {});
  SimObserver observer(cluster);
  cluster.network().kill_link(1, 0, kNever);
  Transfer transfer(1, 100);
  cluster[0].matcher(1).recv(transfer.recv);
  Secret wrong = cluster[0].secret();
  wrong[3] ^= std::byte{1};
  observer.send(1, 0, former_hello(cluster, wrong));
  pass_time(cluster, 10 * kMillisecond);
  EXPECT_EQ(transfer.received.calls, 0);
  observer.send(1, 0, former_hello(cluster, cluster[0].secret()));
  ASSERT_TRUE(cluster.run(cluster.now() + kSecond, [&] { return transfer.received.calls > 0; }));
  EXPECT_EQ(transfer.received.status.code(), Code::kPeerLost);
  const std::string text = transfer.received.status.message();
  EXPECT_NE(text.find("HARP version 1"), std::string::npos) << text;
  EXPECT_NE(text.find("this process version 2"), std::string::npos) << text;
  EXPECT_EQ(cluster[0].counters().other_versions, 2u);
}

TEST(OtherVersions, AtThePeersAddressAreBelievedWhenThePeerStaysSilent) {
  for (const bool peer_lives : {false, true}) {
    SimCluster cluster(2, 1, {});
    SimObserver observer(cluster);
    const Time silent_until = peer_lives ? 4 * kSecond : kNever;
    cluster.network().kill_link(1, 0, silent_until);
    Transfer transfer(1, 100);
    cluster[0].matcher(1).recv(transfer.recv);
    Time next = 0;
    const auto disturb = [&] {
      if (cluster.now() < next) return;
      next = cluster.now() + 50 * kMillisecond;
      cluster.wake_at(next);
      observer.send(1, 0, of_version(3));
    };
    cluster.run(
        8 * kSecond, [&] { return transfer.received.calls > 0; }, disturb);
    EXPECT_EQ(transfer.received.calls, peer_lives ? 0 : 1);
    if (peer_lives) continue;
    EXPECT_GE(cluster.now(), 5 * kSecond);
    const std::string text = transfer.received.status.message();
    EXPECT_NE(text.find("HARP version 3"), std::string::npos) << text;
  }
}

TEST(OtherVersions, EndNoSessionThatStands) {
  SimCluster cluster(2, 1, {});
  SimObserver observer(cluster);
  deliver(cluster, 1);
  observer.send(1, 0, former_hello(cluster, cluster[0].secret()));
  for (int i = 0; i < 100; ++i) {
    observer.send(1, 0, of_version(1));
    pass_time(cluster, 50 * kMillisecond);
  }
  deliver(cluster, 2);
}

}  // namespace
}  // namespace taco::harp
