// Tests a session whose path is not what it was taken for: too narrow for its packets, from the
// start or from some moment on, or led elsewhere.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "harp/session/wire.h"
#include "support/sim_cluster.h"
#include "support/sim_transfer.h"
#include "support/sim_wire.h"

namespace taco::harp {
namespace {

constexpr std::size_t kJumbo = 8972, kEthernet = 1472;

SimFaults jumbo_hosts() {
  SimFaults faults;
  faults.max_datagram = kJumbo;
  faults.receive_buffer = 4 << 20;
  faults.bytes_per_second = 1.25e8;
  return faults;
}

void set_mtu(SimCluster& cluster, std::size_t max_datagram) {
  for (std::uint32_t from = 0; from < cluster.size(); ++from) {
    for (std::uint32_t to = 0; to < cluster.size(); ++to) {
      cluster.network().set_mtu(from, to, max_datagram);
    }
  }
}

// Between nodes 0 and 1; virtual seconds it took, or 1,000 when it did not end within `limit`.
double move(SimCluster& cluster, Transfer& transfer, Duration limit = 5 * kSecond,
            const std::function<void()>& disturb = nullptr) {
  const Time start = cluster.now();
  cluster[1].matcher(0).recv(transfer.recv);
  cluster[0].matcher(1).send(transfer.send);
  if (!cluster.run(
          start + limit, [&] { return transfer.done(); }, disturb)) {
    ADD_FAILURE() << "the message did not arrive";
    return 1000;
  }
  transfer.check();
  return static_cast<double>(cluster.now() - start) / kSecond;
}

TEST(PathSize, EndsThatTakeMoreThanTheSwitchBetweenThemTalkFromTheStart) {
  SimCluster cluster(2, 1, jumbo_hosts());
  set_mtu(cluster, kEthernet);
  Transfer transfer(1, 1 << 20);
  EXPECT_LT(move(cluster, transfer), 1);
  EXPECT_GT(cluster.network().counts().too_large, 0u);
  EXPECT_EQ(cluster[0].session(1)->path_size(), kEthernet);
}

TEST(PathSize, AWidePathIsUsedFromTheFirstMessage) {
  SimCluster cluster(2, 1, jumbo_hosts());
  Transfer transfer(1, 1 << 20);
  move(cluster, transfer);
  EXPECT_EQ(cluster[0].session(1)->path_size(), kJumbo);
  EXPECT_LT(cluster.network().counts().delivered, (1u << 20) / (kJumbo / 2));
}

// The reduction shows a segment that is added twice: once whole, and once in pieces.
void shrink_in_mid_message(const SimFaults& faults, std::size_t before, std::size_t after,
                           std::uint64_t seeds = 20) {
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    SimCluster cluster(2, seed, faults);
    set_mtu(cluster, before);
    Transfer warm_up(1, 100'000), transfer(2, 1 << 20), next(3, 1 << 20);
    move(cluster, warm_up);
    transfer.reduce();
    const Time when = cluster.now() + static_cast<Duration>(1 + seed % 20) * 400 * kMicrosecond;
    cluster.wake_at(when);
    const double seconds = move(cluster, transfer, 20 * kSecond, [&] {
      if (cluster.now() >= when) set_mtu(cluster, after);
    });
    // It takes 9 ms where nothing is wrong.
    EXPECT_LT(seconds, 1) << seed;
    set_mtu(cluster, after);
    move(cluster, next);
    EXPECT_LE(cluster[0].session(1)->path_size(), after) << seed;
    if (testing::Test::HasFailure()) return;
  }
}

TEST(PathSize, APathThatNarrowsUnderAReducingReceiveCarriesItToItsEnd) {
  shrink_in_mid_message(jumbo_hosts(), kJumbo, kEthernet);
}

TEST(PathSize, TheSameOnAPathThatAlsoLosesAndReorders) {
  SimFaults faults = jumbo_hosts();
  faults.loss = 0.02;
  faults.reordering = 0.02;
  faults.duplication = 0.02;
  shrink_in_mid_message(faults, kJumbo, kEthernet);
}

TEST(PathSize, TheSameWithADriverThatReadsPayloadLater) {
  SimFaults faults = jumbo_hosts();
  faults.asynchronous_return = true;
  shrink_in_mid_message(faults, kEthernet, 1372);
}

// Lost packets of these go again after the path has become too narrow for whole segments, which
// they never were: there is nothing to be cut.
TEST(PathSize, EmptyAndShortMessagesArriveThoughThePathNarrowsUnderThem) {
  constexpr std::size_t kMessages = 40;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SimFaults faults = jumbo_hosts();
    faults.loss = 0.3;
    SimCluster cluster(2, seed, faults);
    Transfer warm_up(1, 100'000), large(2, 1 << 20);
    move(cluster, warm_up);
    // Receives that come first and may take more: what is for them comes as they ask, not eagerly.
    std::vector<std::unique_ptr<Transfer>> messages;
    for (std::size_t i = 0; i < kMessages; ++i) {
      messages.push_back(std::make_unique<Transfer>(10 + i, i % 2 == 0 ? 0 : 200));
      messages.back()->recv.max_bytes = 100'000;
      cluster[1].matcher(0).recv(messages.back()->recv);
    }
    cluster.run(cluster.now() + 500 * kMillisecond, [] { return false; });
    cluster[1].matcher(0).recv(large.recv);
    cluster[0].matcher(1).send(large.send);
    for (auto& message : messages) cluster[0].matcher(1).send(message->send);
    set_mtu(cluster, kEthernet);
    const bool all = cluster.run(cluster.now() + 30 * kSecond, [&] {
      return large.done() &&
             std::all_of(messages.begin(), messages.end(), [](auto& one) { return one->done(); });
    });
    ASSERT_TRUE(all) << "seed " << seed;
    for (auto& message : messages) message->check();
  }
}

TEST(PathSize, APathThatGrowsAgainIsFoundOutWithinSeconds) {
  SimCluster cluster(2, 1, jumbo_hosts());
  set_mtu(cluster, kEthernet);
  Transfer first(1, 100'000);
  move(cluster, first);
  ASSERT_EQ(cluster[0].session(1)->path_size(), kEthernet);
  set_mtu(cluster, kJumbo);
  for (std::uint64_t i = 0; i < 70 && cluster[0].session(1)->path_size() < kJumbo; ++i) {
    cluster.run(cluster.now() + kSecond, [] { return false; });
    Transfer transfer(10 + i, 100'000);
    move(cluster, transfer);
  }
  EXPECT_EQ(cluster[0].session(1)->path_size(), kJumbo);
}

TEST(PathSize, LossOfProbesDoesNotSlowTheSender) {
  SimFaults faults = jumbo_hosts();
  SimCluster cluster(2, 1, faults);
  set_mtu(cluster, kEthernet);
  Transfer transfer(1, 4 << 20);
  // 4 MiB at 125 MB/s, headers included: a window halved for every probe would take far longer.
  EXPECT_LT(move(cluster, transfer), 1.3 * (4 << 20) * (1472.0 / 1440) / 1.25e8);
}

TEST(PathSize, FragmentsArriveThroughASmallReceiveBuffer) {
  SimFaults faults = jumbo_hosts();
  faults.receive_buffer = 400'000;
  faults.loss = 0.05;
  shrink_in_mid_message(faults, kJumbo, 1232);
}

// All that is under way are probes of the size, and they are lost.
TEST(PathSize, WhatWaitsBehindProbesLeavesWhenTheyAreLost) {
  SimFaults faults = jumbo_hosts();
  faults.receive_buffer = 400'000;
  faults.loss = 0.05;
  shrink_in_mid_message(faults, kJumbo, 1232, 200);
}

// Far more segments lose a piece than the receiver keeps incomplete ones: pieces of others, which
// it refuses, must not keep those away that it waits for. Unless `withdrawn` is 0, the sender takes
// back the first message that has not ended so long after the path narrowed: the others go on.
void shrink_under_many_messages(const SimFaults& before, double loss, Duration withdrawn = 0) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SimCluster cluster(2, seed, before);
    Transfer warm_up(1, 100'000);
    move(cluster, warm_up);
    std::vector<std::unique_ptr<Transfer>> transfers;
    for (std::uint64_t i = 0; i < 6; ++i) {
      transfers.push_back(std::make_unique<Transfer>(2 + i, (1 << 20) + 1000 * i));
      transfers.back()->reduce();
      cluster[1].matcher(0).recv(transfers.back()->recv);
      cluster[0].matcher(1).send(transfers.back()->send);
    }
    const Time when = cluster.now() + static_cast<Duration>(seed) * kMillisecond;
    cluster.wake_at(when);
    const auto done = [&] {
      return std::ranges::all_of(transfers, [](const auto& it) { return it->done(); });
    };
    const Transfer* without = nullptr;
    const bool ended = cluster.run(cluster.now() + 60 * kSecond, done, [&] {
      if (cluster.now() < when) return;
      set_mtu(cluster, kEthernet);
      cluster.network().faults().loss = loss;
      if (withdrawn == 0 || without != nullptr || cluster.now() < when + withdrawn) return;
      const auto first = std::ranges::find_if(
          transfers, [](const auto& it) { return it->sent.calls == 0 && it->received.calls == 0; });
      ASSERT_NE(first, transfers.end());
      without = first->get();
      cluster[0].matcher(1).cancel((*first)->send, Status(Code::kAborted, "withdrawn"));
    });
    ASSERT_TRUE(ended) << seed;
    ASSERT_EQ(without != nullptr, withdrawn > 0);
    for (const auto& transfer : transfers) {
      if (transfer.get() != without) transfer->check();
    }
    if (testing::Test::HasFailure()) return;
  }
}

TEST(PathSize, ManyMessagesGoOnInPiecesOfWhichManyAreLost) {
  shrink_under_many_messages(jumbo_hosts(), 0.3);
}

TEST(PathSize, TheSameWhereTheDriverReadsPayloadLaterAndTakesOnePacketAtATime) {
  SimFaults faults = jumbo_hosts();
  faults.asynchronous_return = true;
  faults.gso = false;
  shrink_under_many_messages(faults, 0.3);
}

TEST(PathSize, TheSameWhereTheMessageThatIsInPiecesIsWithdrawn) {
  shrink_under_many_messages(jumbo_hosts(), 0.3, 120 * kMillisecond);
}

// A packet as the peer would send it, under a number that has not been used yet.
std::vector<std::byte> packet_for(const Session& session, std::uint64_t number) {
  std::array<std::byte, 64> body;
  wire::Writer writer(body);
  writer.ping();
  wire::Header header =
      wire::frames_header(wire::Type::kControl, {session.connection_id(), number}, writer.size());
  wire::seal(header, writer.bytes());
  std::vector<std::byte> packet(sizeof header + writer.size());
  std::memcpy(packet.data(), &header, sizeof header);
  std::memcpy(packet.data() + sizeof header, body.data(), writer.size());
  return packet;
}

TEST(PathAddresses, APacketReplayedFromElsewhereMovesNothing) {
  SimCluster cluster(2, 1, {});
  Transfer first(1, 100'000), second(2, 100'000);
  move(cluster, first);
  Session& session = *cluster[0].session(1);
  std::vector<std::byte> packet = packet_for(session, 5000);
  const Endpoint elsewhere = SimNetwork::endpoint(1, 3);
  session.on_packets({packet, 0, &elsewhere, 3});
  EXPECT_TRUE(session.remote() == SimNetwork::endpoint(1, 0));
  // Nobody answers there: address 3 of node 1 is not where the peer is heard.
  cluster.network().kill_link(0, 1, kNever, 3);
  move(cluster, second);
  EXPECT_TRUE(session.remote() == SimNetwork::endpoint(1, 0));
  EXPECT_EQ(session.local_path(), 0u);
}

TEST(PathAddresses, HellosThatCrossOnDifferentPairsEndOnOne) {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    SimFaults faults;
    faults.jitter = 200 * kMicrosecond;
    faults.loss = seed % 3 == 0 ? 0.2 : 0;
    SimCluster cluster(2, seed, faults);
    cluster[1].set_address(1);
    const auto exchange = [&](std::uint64_t round) {
      Transfer there(2 * round, 5000), back(2 * round + 1, 5000);
      cluster[0].matcher(1).send(there.send);
      cluster[1].matcher(0).send(back.send);
      cluster[1].matcher(0).recv(there.recv);
      cluster[0].matcher(1).recv(back.recv);
      ASSERT_TRUE(
          cluster.run(cluster.now() + 5 * kSecond, [&] { return there.done() && back.done(); }));
      there.check();
      back.check();
    };
    const auto agree = [&] {
      Session &a = *cluster[0].session(1), &b = *cluster[1].session(0);
      return a.local_path() == b.local_path() &&
             a.remote() == SimNetwork::endpoint(1, a.local_path()) &&
             b.remote() == SimNetwork::endpoint(0, b.local_path());
    };
    exchange(0);
    cluster.run(cluster.now() + kMillisecond, [] { return false; });
    // Where nothing is lost, the first messages are enough.
    for (std::uint64_t round = 1; !agree() && round < 20 && faults.loss > 0; ++round) {
      exchange(round);
    }
    EXPECT_TRUE(agree()) << seed;
    if (testing::Test::HasFailure()) return;
  }
}

// As when a network address translator forgets a mapping, or a host loses an address: one side
// sends from elsewhere all at once. Either side may be the one.
TEST(PathAddresses, APeerThatIsHeardFromElsewhereIsFollowedOnceItAnswersThere) {
  for (const std::uint32_t mover : {0u, 1u}) {
    SimCluster cluster(2, 1, {});
    Transfer first(1, 100'000), second(2, 1'000'000);
    move(cluster, first);
    cluster.network().kill_link(0, 1, kNever, 0);
    cluster.network().kill_link(1, 0, kNever, 0);
    cluster[mover].session(1 - mover)->move_to({SimNetwork::endpoint(1 - mover, 1), 1});
    move(cluster, second);
    Session &a = *cluster[0].session(1), &b = *cluster[1].session(0);
    EXPECT_EQ(a.local_path(), 1u);
    EXPECT_EQ(b.local_path(), 1u);
    EXPECT_TRUE(a.remote() == SimNetwork::endpoint(1, 1));
    EXPECT_TRUE(b.remote() == SimNetwork::endpoint(0, 1));
  }
}

// The least time of the old way says nothing of the new one, so a longer time is no queue.
TEST(PathAddresses, AWayThatIsLongerIsFilledAtOnce) {
  for (const std::uint32_t mover : {0u, 1u}) {
    SimFaults faults;
    faults.bytes_per_second = 1.25e7;
    faults.receive_buffer = 8 << 20;
    SimCluster cluster(2, 1, faults);
    Transfer first(1, 8 << 20), second(2, 4 << 20), third(3, 8 << 20);
    move(cluster, first);
    cluster.network().kill_link(0, 1, kNever, 0);
    cluster.network().kill_link(1, 0, kNever, 0);
    cluster.network().faults().latency = 15 * kMillisecond;
    cluster[mover].session(1 - mover)->move_to({SimNetwork::endpoint(1 - mover, 1), 1});
    move(cluster, second);
    EXPECT_LE(move(cluster, third), 1.5) << "of 0.69 s for the wire";
  }
}

// A host far away, in a process that gives memory back often: the answer to its challenge comes
// when it has been idle for a while.
TEST(PathAddresses, AnIdleSessionStillKnowsItsChallengeWhenTheAnswerComes) {
  for (const std::uint32_t mover : {0u, 1u}) {
    SimFaults faults;
    faults.latency = 60 * kMillisecond;
    SimCluster cluster(2, 1, faults);
    for (const std::uint32_t node : {0u, 1u}) cluster[node].set_peer_timeout(200 * kMillisecond);
    Transfer first(1, 100), second(2, 100);
    cluster[0].set_peer_timeout(10 * kSecond);
    cluster[mover].matcher(1 - mover).send(first.send);
    cluster.run(cluster.now() + 2 * kSecond, [] { return false; });
    ASSERT_EQ(first.sent.calls, 1);
    cluster[mover].session(1 - mover)->move_to({SimNetwork::endpoint(1 - mover, 1), 1});
    cluster[mover].matcher(1 - mover).send(second.send);
    cluster.run(cluster.now() + 2 * kSecond, [] { return false; });
    EXPECT_EQ(cluster[1 - mover].session(mover)->local_path(), 1u) << mover;
  }
}

// Somebody repeats an old hello from one address while the peer asks for an answer at another.
TEST(PathAddresses, AnAnswerToAHelloAndOneToAChallengeEachGoWhereTheQuestionCameFrom) {
  constexpr std::uint32_t kAsked = 2, kHello = 7;
  for (const bool hello_last : {false, true}) {
    SimCluster cluster(2, 1, {});
    SimObserver observer(cluster);
    Transfer first(1, 100'000);
    move(cluster, first);
    const Datagram hello = observer.seen_between(0, 1, wire::Type::kHello).front();
    observer.seen.clear();
    std::array<std::byte, 64> body;
    wire::Writer writer(body);
    writer.path_challenge(77);
    const Datagram challenge = datagram_of(
        wire::frames_header(wire::Type::kControl, {cluster[1].session(0)->connection_id(), 5000},
                            writer.size()),
        writer.bytes());
    const auto arrive = [&](Datagram bytes, std::uint32_t address) {
      const Endpoint source = SimNetwork::endpoint(0, address);
      cluster[1].inject({bytes, 0, &source, address});
    };
    if (!hello_last) arrive(hello, kHello);
    arrive(challenge, kAsked);
    if (hello_last) arrive(hello, kHello);
    cluster.run(cluster.now() + 10 * kMillisecond, [] { return false; });
    std::vector<std::uint32_t> hellos, responses;
    for (const SimObserver::Seen& one : observer.seen) {
      if (one.from != 1) continue;
      if (is_type(one.bytes, wire::Type::kHello)) hellos.push_back(one.address);
      if (!is_type(one.bytes, wire::Type::kControl)) continue;
      wire::FrameReader reader{std::span(one.bytes).subspan(sizeof(wire::Header))};
      for (wire::Frame frame; reader.next(frame);) {
        if (frame == wire::Frame::kPathResponse) responses.push_back(one.address);
      }
    }
    EXPECT_EQ(hellos, std::vector<std::uint32_t>{kHello});
    EXPECT_EQ(responses, std::vector<std::uint32_t>{kAsked});
  }
}

// How often the loops turn while nothing can arrive.
int turns_within(SimCluster& cluster, Duration time) {
  int turns = 0;
  cluster.run(
      cluster.now() + time, [] { return false; }, [&] { ++turns; });
  return turns;
}

// The path carries nothing large any more, which raises the question of what it does carry, and
// then answers nothing at all.
struct SilentPathTest : ::testing::Test {
  SilentPathTest() : cluster(2, 1, jumbo_hosts()), warm_up(1, 100'000), doomed(2, 1 << 20) {
    for (const std::uint32_t node : {0u, 1u}) cluster[node].set_peer_timeout(600 * kSecond);
    move(cluster, warm_up);
    cluster[1].matcher(0).recv(doomed.recv);
    cluster[0].matcher(1).send(doomed.send);
    set_mtu(cluster, wire::kMinDatagram - 1);
    const Session& session = *cluster[0].session(1);
    const bool doubted =
        cluster.run(cluster.now() + kSecond, [&] { return session.doubts_its_path(); });
    EXPECT_TRUE(doubted);
    back = cluster.now() + 35 * kSecond;
    cluster.network().kill_link(0, 1, back);
  }
  SimCluster cluster;
  Time back;
  Transfer warm_up, doomed;
};

TEST_F(SilentPathTest, IsAskedEverMoreRarely) {
  turns_within(cluster, 20 * kSecond);
  // A probe of silence every half second, its timer, a question, and what a busy peer says; each
  // with another look before the loop rests.
  EXPECT_LT(turns_within(cluster, 10 * kSecond), 200);
  set_mtu(cluster, kEthernet);
  ASSERT_TRUE(cluster.run(back + 10 * kSecond, [&] { return doomed.done(); }));
  doomed.check();
  EXPECT_LT(cluster.now() - back, 2 * kSecond);
}

TEST_F(SilentPathTest, IsNotAskedOnceThePeerHasLeft) {
  cluster[1].leave();
  turns_within(cluster, 2 * kSecond);
  EXPECT_GT(doomed.sent.calls, 0);
  EXPECT_LT(turns_within(cluster, 10 * kSecond), 130);
}

}  // namespace
}  // namespace taco::harp
