// Packets that belong to no session here: resets, and what another version of the wire sends.
#include "harp/session/stray_packets.h"

#include <gtest/gtest.h>

#include <algorithm>
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

TEST(Reset, ThatComesFromElsewhereThanThePacketWentIsNotBelieved) {
  SimCluster cluster(3, 1, {});
  SimObserver observer(cluster);
  deliver(cluster, 1);
  Datagram reset = reset_of(header_of(observer.seen_between(0, 1, wire::Type::kControl).back()));
  const Endpoint of_another = SimNetwork::endpoint(2, 0), at_another = SimNetwork::endpoint(1, 1),
                 by_another_port = SimNetwork::endpoint(1, 0, 1);
  for (const Endpoint& source : {of_another, at_another, by_another_port}) {
    cluster[0].inject({reset, 0, &source, 0});
    EXPECT_EQ(cluster[0].peer(1).suspicion.resets, 0u) << to_string(source);
  }
  observer.send(1, 0, reset);
  EXPECT_EQ(cluster[0].peer(1).suspicion.resets, 1u);
}

// Somebody has a third process answer copies of what is for the peer, while that is cut off for
// longer than a suspicion lasts.
TEST(Reset, OfAThirdProcessEndsNoSession) {
  SimCluster cluster(3, 1, {});
  SimObserver observer(cluster);
  deliver(cluster, 1);
  const Time back = cluster.now() + 3 * kSecond;
  cluster.network().kill_link(1, 0, back);
  Transfer transfer(2, 100);
  cluster[0].matcher(1).recv(transfer.recv);
  std::size_t copied = observer.seen.size();
  const auto copy = [&] {
    for (; copied < observer.seen.size(); ++copied) {
      const SimObserver::Seen one = observer.seen[copied];
      if (one.from == 0 && one.to == 1) observer.send(0, 2, one.bytes);
    }
  };
  EXPECT_FALSE(cluster.run(
      back, [&] { return transfer.received.calls > 0; }, copy));
  EXPECT_GE(cluster[0].counters().resets_received, 3u);
  cluster[1].matcher(0).send(transfer.send);
  ASSERT_TRUE(cluster.run(back + 5 * kSecond, [&] { return transfer.done(); }));
  transfer.check();
}

// Somebody has a copy of the packet that begins a path come from elsewhere, while the peer is cut
// off: so it is asked there. Whoever is there answers by resets, or nobody is, and each question is
// refused.
TEST(Reset, FromWhereThePeerHasNeverBeenEndsNoSession) {
  std::uint64_t resets = 0, refusals = 0;
  const std::uint32_t third = 2;
  for (const Endpoint& elsewhere :
       {SimNetwork::endpoint(third, 1), SimNetwork::endpoint(third, 1, /*port=*/1)}) {
    for (const std::uint32_t node : {0u, 1u}) {  // one of them leads
      const std::uint32_t peer = 1 - node;
      SimCluster cluster(3, 1, {});
      SimObserver observer(cluster);
      for (const std::uint32_t each : {0u, 1u}) {
        cluster[each].set_paths(2);
        cluster[each].set_security(Security::kAuth);  // or what asks would be too short for a reset
      }
      cluster.network().kill_link(peer, node, kNever, /*address=*/1);
      deliver(cluster, 1);
      const auto begins = std::ranges::find_if(observer.seen, [&](const auto& seen) {
        return seen.from == peer && seen.address == 1 && is_type(seen.bytes, wire::Type::kControl);
      });
      ASSERT_NE(begins, observer.seen.end());
      Datagram copy = begins->bytes;
      cluster[node].inject({copy, 0, &elsewhere, 1});
      const Time back = cluster.now() + 3 * kSecond;
      cluster.network().kill_link(peer, node, back);
      Transfer transfer(2, 100);
      cluster[node].matcher(peer).recv(transfer.recv);
      EXPECT_FALSE(cluster.run(back, [&] { return transfer.received.calls > 0; }));
      cluster[peer].matcher(node).send(transfer.send);
      ASSERT_TRUE(cluster.run(back + 5 * kSecond, [&] { return transfer.done(); }));
      transfer.check();
      resets += cluster[node].counters().resets_received;
      refusals += cluster.network().counts().unreachable;
    }
  }
  EXPECT_GE(resets, 3u);
  EXPECT_GE(refusals, 3u);
}

// Who sees none of our packets cannot quote one, and so keeps nobody from being heard who can.
TEST(Reset, ThatQuoteNothingOfOursDoNotUseUpWhatIsLookedAt) {
  SimCluster cluster(2, 1, {});
  SimObserver observer(cluster);
  deliver(cluster, 1);
  const wire::Header last = header_of(observer.seen_between(0, 1, wire::Type::kControl).back());
  for (std::uint32_t i = 1; i <= 20'000; ++i) {
    wire::Header made_up = last;
    made_up.connection ^= i;
    observer.send(1, 0, reset_of(made_up));
  }
  EXPECT_EQ(cluster[0].peer(1).suspicion.resets, 0u);
  observer.send(1, 0, reset_of(last));
  EXPECT_EQ(cluster[0].peer(1).suspicion.resets, 1u);
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

// A packet of that version, from anybody.
Datagram of_version(std::uint8_t version, wire::Type type = wire::Type::kControl) {
  wire::Header header = wire::frames_header(type, {1, 1}, 0);
  header.version_and_type = static_cast<std::uint8_t>(version << 4 | static_cast<int>(type));
  return datagram_of(header, {});
}

// While process 1 is not heard until `silent_until`, somebody sends packets of version 3 in its
// name. Ends with the receive, or at `end`.
void call_under_other_version(SimCluster& cluster, Transfer& transfer, Time silent_until,
                              Time end) {
  SimObserver observer(cluster);
  cluster.network().kill_link(1, 0, silent_until);
  cluster[0].matcher(1).recv(transfer.recv);
  Time next = 0;
  const auto disturb = [&] {
    if (cluster.now() < next) return;
    next = cluster.now() + 50 * kMillisecond;
    cluster.wake_at(next);
    observer.send(1, 0, of_version(3));
    observer.send(1, 0, of_version(3, wire::Type::kHello));
  };
  cluster.run(
      end, [&] { return transfer.received.calls > 0; }, disturb);
}

TEST(OtherVersions, DoNotEndTheWaitForAPeerThatIsSlow) {
  SimCluster cluster(2, 1, {});
  Transfer transfer(1, 100);
  cluster[1].matcher(0).send(transfer.send);
  call_under_other_version(cluster, transfer, 9 * kSecond, 11 * kSecond);
  EXPECT_GE(cluster.now(), 9 * kSecond);
  ASSERT_EQ(transfer.received.calls, 1);
  transfer.check();
}

TEST(OtherVersions, AreNamedOnceThePeerHasNotAnsweredInTime) {
  SimCluster cluster(2, 1, {});
  Transfer transfer(1, 100);
  call_under_other_version(cluster, transfer, kNever, 20 * kSecond);
  EXPECT_GE(cluster.now(), 10 * kSecond);
  ASSERT_EQ(transfer.received.calls, 1);
  EXPECT_EQ(transfer.received.status.code(), Code::kPeerLost);
  const std::string text = transfer.received.status.message();
  for (const char* what :
       {"never answered", "HARP version 3", "version 2", "install one version"}) {
    EXPECT_NE(text.find(what), std::string::npos) << text;
  }
  EXPECT_GT(cluster[0].counters().other_versions, 100u);
}

TEST(OtherVersions, FromElsewhereAreNotNamed) {
  SimCluster cluster(3, 1, {});
  SimObserver observer(cluster);
  cluster.network().kill_link(1, 0, kNever);
  Transfer transfer(1, 100);
  cluster[0].matcher(1).recv(transfer.recv);
  observer.send(2, 0, of_version(3));
  ASSERT_TRUE(
      cluster.run(cluster.now() + 20 * kSecond, [&] { return transfer.received.calls > 0; }));
  const std::string text = transfer.received.status.message();
  EXPECT_EQ(text.find("HARP version"), std::string::npos) << text;
}

TEST(OtherVersions, EndNoSessionThatStands) {
  SimCluster cluster(2, 1, {});
  SimObserver observer(cluster);
  deliver(cluster, 1);
  for (int i = 0; i < 100; ++i) {
    observer.send(1, 0, of_version(1));
    pass_time(cluster, 50 * kMillisecond);
  }
  deliver(cluster, 2);
}

}  // namespace
}  // namespace taco::harp
