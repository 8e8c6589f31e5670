// An engine with very many peers: what each of them costs it, counted in packets, bytes, turns and
// sessions that are looked at.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>

#include "support/many_sessions.h"
#include "support/sim_cluster.h"
#include "support/sim_transfer.h"

namespace taco::harp {
namespace {

void connect_all(SimCluster& cluster) {
  std::deque<Transfer> all;
  for (std::uint32_t i = 1; i < cluster.size(); ++i) {
    Transfer& each = all.emplace_back(i, 2000);
    cluster[0].recv(i, each.recv);
    cluster[i].send(0, each.send);
  }
  ASSERT_TRUE(cluster.run(cluster.now() + 20 * kSecond, [&] {
    return std::ranges::all_of(all, [](const Transfer& each) { return each.done(); });
  }));
}

void pass(SimCluster& cluster, Duration time) {
  cluster.run(cluster.now() + time, [] { return false; });
}

// The first hello to each of them aside, whatever their number.
TEST(ManyPeers, ThoseThatAreSilentGetHellosWithinARateForAllOfThem) {
  constexpr Duration kTime = 9 * kSecond;
  std::uint64_t of_few = 0;
  for (const std::uint32_t peers : {1u, 100u, 3000u}) {
    std::deque<Transfer> awaited;
    WireHost caller(0, 1);
    caller.loop.begin_turn_st(kSecond);
    for (std::uint32_t i = 1; i <= peers; ++i) {
      const WireHost silent(i, 1);
      caller.loop.recv_st(caller.know(silent), awaited.emplace_back(i, 5000).recv);
    }
    caller.run(kSecond, kSecond + kTime);
    const std::uint64_t first = std::uint64_t{peers} * 1472;
    const std::uint64_t again = caller.nic.bytes - std::min(caller.nic.bytes, first);
    if (peers == 1) of_few = again;
    EXPECT_LE(again, peers * of_few + peers) << peers;
    EXPECT_LE(again, CallPace::kBytesAtOnce + CallPace::kBytesASecond * (kTime / kSecond) + 3000);
  }
  EXPECT_LE(of_few, 30u * 1472) << "ever more rarely";
}

// A process is kept from its core just when many have heard that they may send: what they do send
// before they hear of it again has room in its buffer. `posted`: it knows of all before any has
// called; else it hears of them one after the other.
TEST(ManyPeers, WhatAllSendThatBeginAtOnceFitsIntoTheBuffer) {
  constexpr std::uint32_t kPeers = 64;
  for (const bool posted : {true, false}) {
    SCOPED_TRACE(posted ? "posted" : "unposted");
    SimFaults faults;
    faults.receive_buffer = 425'984;  // what Linux gives whoever asks for more
    SimCluster cluster(kPeers + 1, 1, faults);
    std::deque<Transfer> all;
    for (std::uint64_t tag = 0; tag < 12 * kPeers; ++tag) all.emplace_back(tag, 1000);
    const auto receive = [&] {
      for (std::uint32_t i = 0; i < all.size(); ++i) cluster[0].recv(1 + i % kPeers, all[i].recv);
    };
    if (posted) receive();
    for (std::uint32_t i = 0; i < all.size(); ++i) cluster[1 + i % kPeers].send(0, all[i].send);
    const CreditPool& pool = cluster[0].credit();
    std::uint64_t most = 0;
    ASSERT_TRUE(cluster.run(kSecond, [&] {
      most = std::max(most, pool.outstanding());
      return cluster[1].session(0)->established();
    }));
    cluster[0].stall_until(cluster.now() + 10 * kMillisecond);
    if (!posted) receive();
    ASSERT_TRUE(cluster.run(10 * kSecond, [&] {
      most = std::max(most, pool.outstanding());
      return std::ranges::all_of(all, [](const Transfer& each) { return each.done(); });
    }));
    for (const Transfer& each : all) each.check();
    EXPECT_EQ(cluster[0].sim_nic().overflows(), 0u);
    EXPECT_LE(most, pool.capacity());
    EXPECT_GE(most, pool.capacity() / 2);
    cluster.end();
  }
}

// More of them than packets fit into half the buffer: each waits for its turn, and none for ever.
TEST(ManyPeers, AllTogetherNeverHaveMoreUnderWayThanHalfTheBufferHolds) {
  for (const std::uint32_t peers : {8u, 100u}) {
    SCOPED_TRACE(peers);
    SimFaults faults;
    faults.receive_buffer = 212'992;
    faults.max_datagram = 8972;
    SimCluster cluster(peers + 1, 1, faults);
    std::deque<Transfer> all;
    for (std::uint32_t i = 1; i <= peers; ++i) {
      for (const std::size_t bytes : {200u, 50'000u}) {
        Transfer& each = all.emplace_back(2 * i + bytes / 50'000, bytes);
        cluster[0].recv(i, each.recv);
        cluster[i].send(0, each.send);
      }
    }
    const CreditPool& pool = cluster[0].credit();
    std::uint64_t most = 0;
    ASSERT_TRUE(cluster.run(100 * kSecond, [&] {
      most = std::max(most, pool.outstanding());
      return std::ranges::all_of(all, [](const Transfer& each) { return each.done(); });
    }));
    for (const Transfer& each : all) each.check();
    EXPECT_LE(most, pool.capacity());
    EXPECT_GE(most, pool.capacity() / 2);
    pass(cluster, 60 * kSecond);
    EXPECT_EQ(cluster[0].loop().awake(), 0u) << "whoever waits for nothing rests";
    cluster.end();
  }
}

// Peers of whom nobody expects anything may fall silent unnoticed, until others need what they
// hold.
TEST(ManyPeers, CreditThatSilentPeersHoldIsForTheOthersOnceTheyAreFoundDead) {
  SimFaults faults;
  faults.receive_buffer = 212'992;
  faults.max_datagram = 8972;
  constexpr std::uint32_t kSilent = 24;
  SimCluster cluster(kSilent + 2, 1, faults);
  std::deque<Transfer> all;
  for (std::uint32_t i = 1; i <= kSilent; ++i) {
    Transfer& each = all.emplace_back(i, 2000);
    cluster[0].recv(i, each.recv);
    cluster[i].send(0, each.send);
  }
  ASSERT_TRUE(cluster.run(20 * kSecond, [&] {
    return std::ranges::all_of(all, [](const Transfer& each) { return each.done(); });
  }));
  pass(cluster, 60 * kSecond);
  for (std::uint32_t i = 1; i <= kSilent; ++i) cluster[i].stall_until(kNever);
  Transfer late(1000, 50'000);
  cluster[0].recv(kSilent + 1, late.recv);
  cluster[kSilent + 1].send(0, late.send);
  EXPECT_TRUE(cluster.run(cluster.now() + 30 * kSecond, [&] { return late.done(); }));
  late.check();
  cluster.end();
}

TEST(ManyPeers, IdleSessionsWakeNobodyAndAreLookedAtByNobody) {
  SimFaults faults;
  faults.receive_buffer = 8 << 20;
  SimCluster cluster(40, 1, faults);
  for (std::uint32_t i = 0; i < cluster.size(); ++i) cluster[i].set_security(Security::kAuth);
  connect_all(cluster);
  pass(cluster, 5 * kSecond);
  EngineLoop& loop = cluster[0].loop();
  EXPECT_FALSE(loop.has_open_requests_st());
  EXPECT_TRUE(loop.is_quiet_st());
  EXPECT_EQ(loop.awake(), 0u);
  EXPECT_EQ(loop.to_look_at(), 0u);
  const std::uint64_t turns = cluster[0].turns();
  pass(cluster, 600 * kSecond);
  EXPECT_EQ(cluster[0].turns(), turns);
  // The end of a wait() looks only at sessions that have done something.
  Transfer one(1000, 100);
  cluster[0].send(1, one.send);
  cluster[1].recv(0, one.recv);
  EXPECT_TRUE(loop.has_open_requests_st());
  ASSERT_TRUE(cluster.run(cluster.now() + kSecond, [&] { return one.done(); }));
  pass(cluster, 5 * kSecond);
  EXPECT_EQ(loop.awake(), 0u);
}

TEST(ManyPeers, TenThousandIdleSessionsWakeNobodyAndAreLookedAtByNobody) {
  ManySessions all(10'000, 1);
  ASSERT_TRUE(all.all_connected());
  all.run(60 * kSecond);
  EngineLoop& loop = all.hub().loop;
  EXPECT_EQ(loop.awake(), 0u);
  EXPECT_EQ(loop.to_look_at(), 0u);
  EXPECT_TRUE(loop.is_quiet_st());
  const std::uint64_t sent = all.hub().nic.sent;
  EXPECT_EQ(all.run(600 * kSecond), 0u);
  EXPECT_EQ(all.hub().nic.sent, sent);
}

// Each is told, by a packet or two, and none costs more for there being others.
TEST(ManyPeers, AnAddressThatGoesOrComesBackIsLittleWorkForEachSession) {
  for (const std::uint64_t sessions : {1u, 2'000u}) {
    ManySessions all(static_cast<std::uint32_t>(sessions), 2);
    ASSERT_TRUE(all.all_connected());
    all.run(60 * kSecond);
    for (const std::uint32_t missing : {1u, 0u}) {
      const std::uint64_t sent = all.hub().nic.sent, lookups = all.hub().lookups;
      all.hub().nic.missing = missing;
      while (all.hub().turn(all.now())) {
      }
      EXPECT_LE(all.hub().nic.sent - sent, 2 * sessions) << sessions << " " << missing;
      EXPECT_LE(all.hub().lookups - lookups, 2 * sessions) << sessions << " " << missing;
    }
  }
}

// An engine has lost an address, and some of its sessions have heard of that.
class ToldInTurnsTest : public testing::Test {
 protected:
  static constexpr std::uint32_t kSessions = 500;

  void SetUp() override {
    ASSERT_TRUE(all.all_connected());
    all.run(60 * kSecond);
    sent = hub.nic.sent;
    hub.nic.missing = 1;
    turn();
  }
  bool turn() {
    const std::uint64_t before = hub.nic.sent;
    const bool worked = hub.turn(all.now());
    most = std::max(most, hub.nic.sent - before);
    return worked;
  }
  void tell_all() {
    while (turn()) {
    }
  }

  ManySessions all{kSessions, 2};
  WireHost& hub = all.hub();
  std::uint64_t sent = 0, most = 0;  // until then; in one turn
};

TEST_F(ToldInTurnsTest, NobodyElseWaitsForAll) {
  EXPECT_FALSE(hub.loop.may_sleep_st());
  EXPECT_FALSE(hub.loop.is_quiet_st());
  tell_all();
  EXPECT_TRUE(hub.loop.may_sleep_st());
  EXPECT_LE(most, 100u);
  EXPECT_GE(hub.nic.sent - sent, kSessions);
  EXPECT_EQ(hub.loop.counters().paths_left, kSessions);
}

TEST_F(ToldInTurnsTest, AllHearThatItHasGoneAndIsBack) {
  hub.nic.missing = 0;
  tell_all();
  EXPECT_EQ(hub.loop.counters().paths_left, kSessions);
  EXPECT_GE(hub.nic.sent - sent, 2 * kSessions) << "its path is not tried again";
}

TEST_F(ToldInTurnsTest, PeersThatGoMeanwhileLeaveTheOthersTheirTurn) {
  for (std::uint32_t i = 0; i < kSessions - 10; ++i) hub.forget(all.id(i));
  tell_all();
  EXPECT_GE(hub.loop.counters().paths_left, 10u);
  EXPECT_LE(hub.loop.counters().paths_left, 100u);
}

TEST_F(ToldInTurnsTest, PeersThatHaveHeardAndGoTakeNobodysTurn) {
  hub.forget(all.id(kSessions - 1));
  tell_all();
  EXPECT_EQ(hub.loop.counters().paths_left, kSessions);
}

// A session that has rested watches its peer like any other once something is wanted of it.
TEST(ManyPeers, ASessionThatHasRestedNoticesThatItsPeerIsGone) {
  for (const bool refused : {true, false}) {
    SimCluster cluster(2, 1, {});
    connect_all(cluster);
    pass(cluster, 60 * kSecond);
    ASSERT_EQ(cluster[0].loop().awake(), 0u);
    if (refused) {
      cluster[1].die();
    } else {
      cluster[1].stall_until(kNever);
    }
    Transfer waiting(7, 100);
    cluster[0].recv(1, waiting.recv);
    const Time start = cluster.now();
    cluster.run(start + 30 * kSecond, [&] { return waiting.received.calls > 0; });
    EXPECT_EQ(waiting.received.status.code(), Code::kPeerLost);
    EXPECT_LE(cluster.now() - start, refused ? kSecond : 13 * kSecond);
    EXPECT_GE(cluster.now() - start, refused ? 0 : 10 * kSecond);
    cluster.end();
  }
}

}  // namespace
}  // namespace taco::harp
