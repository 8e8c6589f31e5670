// The engine's loop in virtual time: what it does with refusals, with idle peers, and after it was
// kept away.
#include "harp/engine/engine_loop.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/sim_cluster.h"
#include "support/sim_transfer.h"

namespace taco::harp {
namespace {

void deliver(SimCluster& cluster, std::uint64_t tag) {
  Transfer transfer(tag, 10'000);
  cluster[1].recv(0, transfer.recv);
  cluster[0].send(1, transfer.send);
  ASSERT_TRUE(cluster.run(cluster.now() + 5 * kSecond, [&] { return transfer.done(); }));
  transfer.check();
}

void pass_time(SimCluster& cluster, Duration time) {
  cluster.run(cluster.now() + time, [] { return false; });
}

// Process 1 ends, so that its ports refuse: what somebody who waits for it is told, and soon.
std::string expect_refusals_end_it(SimCluster& cluster) {
  cluster[1].sim_nic().close_st();
  cluster[1].stall_until(kNever);
  Transfer waiting(2, 100);
  cluster[0].recv(1, waiting.recv);
  const Time start = cluster.now();
  EXPECT_TRUE(cluster.run(start + kSecond, [&] { return waiting.received.calls > 0; }));
  EXPECT_EQ(waiting.received.status.code(), Code::kPeerLost);
  EXPECT_LT(cluster.now() - start, 200 * kMillisecond);  // long enough not to be a firewall's
  return waiting.received.status.message();
}

// A look costs a system call, which a message that is ready need not wait for. What large ones
// begin with leaves with the acknowledgements of what has arrived.
TEST(EngineLoop, ASmallMessageLeavesBeforeAnybodyLooksForArrivals) {
  SimCluster cluster(2, 1, {});
  deliver(cluster, 1);
  pass_time(cluster, kSecond);
  EngineLoop& loop = cluster[0].loop();
  Transfer small(2, 64), large(3, 100'000);
  const std::uint64_t before = loop.counters().packets_sent;
  cluster[0].send(1, large.send);
  loop.transmit_eager_st();
  EXPECT_EQ(loop.counters().packets_sent, before);
  cluster[0].send(1, small.send);
  loop.transmit_eager_st();
  EXPECT_GT(loop.counters().packets_sent, before);
  for (Transfer* transfer : {&small, &large}) cluster[1].recv(0, transfer->recv);
  ASSERT_TRUE(cluster.run(cluster.now() + kSecond, [&] { return small.done() && large.done(); }));
}

TEST(EngineLoop, APeerWhosePortRefusesHasEnded) {
  SimCluster cluster(2, 1, {});
  deliver(cluster, 1);
  const std::string text = expect_refusals_end_it(cluster);
  EXPECT_NE(text.find("its process has ended"), std::string::npos) << text;
  EXPECT_GE(cluster.network().counts().unreachable, Suspicion::kRefusals);
}

// It has said goodbye to everybody when the first hello comes.
TEST(EngineLoop, APeerThatIsMetWhileItLeavesHasLeft) {
  SimCluster cluster(2, 1, {});
  cluster[1].leave();
  Transfer waiting(2, 100);
  cluster[0].recv(1, waiting.recv);
  ASSERT_TRUE(cluster.run(kSecond, [&] {
    return cluster[0].session(1)->established() && cluster[1].session(0) != nullptr &&
           cluster[1].session(0)->established();
  }));
  cluster[1].loop().end_st(Status(Code::kAborted, "the transport was closed"));
  cluster[1].stall_until(kNever);
  ASSERT_TRUE(cluster.run(cluster.now() + kSecond, [&] { return waiting.received.calls > 0; }));
  EXPECT_EQ(waiting.received.status.code(), Code::kPeerLost);
  ASSERT_NE(waiting.received.status.peer_loss(), nullptr);
  EXPECT_TRUE(waiting.received.status.peer_loss()->has_left) << waiting.received.status.message();
}

TEST(EngineLoop, APeerThatRefusesOnAllItsPathsHasEnded) {
  SimCluster cluster(2, 1, {});
  for (std::uint32_t node : {0u, 1u}) cluster[node].set_paths(3);
  deliver(cluster, 1);
  pass_time(cluster, kSecond);
  ASSERT_EQ(cluster[0].session(1)->paths().live(), 3u);
  expect_refusals_end_it(cluster);
}

// With a round trip that takes longer than the refusals do, which come from nearer.
TEST(EngineLoop, AFirewallThatRefusesOnOneOfTwoLinksEndsNoPeer) {
  SimFaults faults;
  faults.latency = 40 * kMillisecond;
  for (const bool from_the_start : {true, false}) {
    for (std::uint32_t address : {0u, 1u}) {
      SimCluster cluster(2, 1, faults);
      for (std::uint32_t node : {0u, 1u}) cluster[node].set_paths(2);
      if (!from_the_start) {
        deliver(cluster, 1);
        pass_time(cluster, kSecond);
        ASSERT_EQ(cluster[0].session(1)->paths().live(), 2u);
      }
      for (std::uint32_t node : {0u, 1u}) cluster.network().refuse_at(node, address);
      // The peer that answers is slow, not only far away.
      cluster[1].stall_until(cluster.now() + 300 * kMillisecond);
      for (std::uint64_t tag = 10; tag < 30; ++tag) deliver(cluster, tag);
      EXPECT_GE(cluster.network().counts().unreachable, Suspicion::kRefusals);
    }
  }
}

// The handshake's own path is refused once it stands for one side; the other paths have yet to be
// proved, or even (`late`) to be opened by the side for which it does not.
TEST(EngineLoop, AFirewallThatRefusesTheFirstPathBeforeOthersAreProvedEndsNoPeer) {
  SimFaults faults;
  faults.latency = 40 * kMillisecond;
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    for (const bool late : {false, true}) {
      SimCluster cluster(2, seed, faults);
      for (std::uint32_t node : {0u, 1u}) cluster[node].set_paths(2);
      Transfer transfer(1, 100'000);
      cluster[1].recv(0, transfer.recv);
      cluster[0].send(1, transfer.send);
      ASSERT_TRUE(cluster.run(kSecond, [&] { return cluster[0].session(1)->established(); }));
      const std::uint32_t refused = SimNetwork::place_of(cluster[0].session(1)->remote()).address;
      for (std::uint32_t node : {0u, 1u}) cluster.network().refuse_at(node, refused);
      const Time mended = cluster.now() + 300 * kMillisecond;
      if (late) cluster.network().kill_link(0, 1, mended, 1 - refused);
      ASSERT_TRUE(cluster.run(cluster.now() + 5 * kSecond, [&] { return transfer.done(); }));
      transfer.check();
      EXPECT_GE(cluster.network().counts().unreachable, 1u);
    }
  }
}

// Whatever the round trip: what got through again has yet to be answered.
TEST(EngineLoop, AFirewallThatRefusesForAMomentEndsNoPeer) {
  for (const Duration latency :
       {50 * kMicrosecond, 2 * kMillisecond, 5 * kMillisecond, 40 * kMillisecond}) {
    // As long as a firewall takes to reload its rules, at least.
    for (const Duration moment : {latency / 4, latency, 40 * kMillisecond, 60 * kMillisecond}) {
      SimFaults faults;
      faults.latency = latency;
      SimCluster cluster(2, 1, faults);
      deliver(cluster, 1);
      Transfer waiting(2, 100);
      cluster[0].recv(1, waiting.recv);
      pass_time(cluster, 100 * kMillisecond);
      cluster.network().refuse_at(1, 0);
      ASSERT_TRUE(cluster.run(cluster.now() + kSecond,
                              [&] { return cluster.network().counts().unreachable > 0; }));
      const Time end = cluster.now() + moment;
      cluster.wake_at(end);
      ASSERT_TRUE(cluster.run(end, [&] { return cluster.now() >= end; }));
      cluster.network().admit_at(1, 0);
      pass_time(cluster, kSecond);
      EXPECT_EQ(waiting.received.calls, 0)
          << waiting.received.status.message() << "; latency " << latency << ", " << moment;
      if (waiting.received.calls > 0) continue;
      cluster[1].send(0, waiting.send);
      ASSERT_TRUE(cluster.run(cluster.now() + kSecond, [&] { return waiting.done(); }));
      waiting.check();
    }
  }
}

TEST(EngineLoop, APeerFarAwayWhosePortRefusesHasEnded) {
  SimFaults faults;
  faults.latency = 40 * kMillisecond;
  SimCluster cluster(2, 1, faults);
  deliver(cluster, 1);
  cluster[1].sim_nic().close_st();
  cluster[1].stall_until(kNever);
  Transfer waiting(2, 100);
  cluster[0].recv(1, waiting.recv);
  EXPECT_TRUE(
      cluster.run(cluster.now() + 500 * kMillisecond, [&] { return waiting.received.calls > 0; }));
}

TEST(EngineLoop, APeerThatRefusesOnOneLinkAndIsSilentOnTheOtherHasEnded) {
  SimCluster cluster(2, 1, {});
  for (std::uint32_t node : {0u, 1u}) cluster[node].set_paths(2);
  deliver(cluster, 1);
  pass_time(cluster, kSecond);
  cluster.network().kill_link(0, 1, kNever, 1);
  cluster[1].sim_nic().close_st();
  cluster[1].stall_until(kNever);
  Transfer waiting(2, 100);
  cluster[0].recv(1, waiting.recv);
  const Time start = cluster.now();
  ASSERT_TRUE(cluster.run(start + 3 * kSecond, [&] { return waiting.received.calls > 0; }));
  EXPECT_EQ(waiting.received.status.code(), Code::kPeerLost);
  EXPECT_GE(cluster.now() - start, Suspicion::kLongSilence);
}

TEST(EngineLoop, APeerThatIsOnlySilentIsNotTakenForDead) {
  SimCluster cluster(2, 1, {});
  deliver(cluster, 1);
  cluster[1].stall_until(cluster.now() + 5 * kSecond);
  Transfer waiting(2, 100);
  cluster[0].recv(1, waiting.recv);
  pass_time(cluster, 6 * kSecond);
  EXPECT_EQ(waiting.received.calls, 0);
  cluster[1].send(0, waiting.send);
  ASSERT_TRUE(cluster.run(cluster.now() + kSecond, [&] { return waiting.done(); }));
  waiting.check();
}

TEST(EngineLoop, AnIdlePeerIsKeptWhileItLivesAndForgottenOnceItIsSilentForLong) {
  SimCluster cluster(2, 1, {});
  cluster[0].set_peer_timeout(kSecond);
  deliver(cluster, 1);
  const PeerId id = cluster[0].peer(1).id;
  const auto is_known = [&] { return cluster[0].peers().find(id) != nullptr; };
  cluster[0].peers().release(id);
  cluster[0].loop().take_released_st();
  pass_time(cluster, 20 * kSecond);
  ASSERT_TRUE(is_known());
  cluster[1].stall_until(kNever);
  const Time start = cluster.now();
  ASSERT_TRUE(cluster.run(start + 20 * kSecond, [&] { return !is_known(); }));
  EXPECT_GE(cluster.now() - start, kSecond);
  EXPECT_LT(cluster.now() - start, 5 * kSecond);
  StackStats stats;
  cluster[0].loop().add_to_st(stats);
  EXPECT_EQ(stats.peers, 0u);
  EXPECT_EQ(stats.sessions, 0u);
}

TEST(EngineLoop, WhoIsKeptAwayPutsEveryDeadlineOff) {
  SimCluster cluster(1, 1, {});
  struct Alarm {
    Timer timer;
    Time rang = 0;
  } first, second;
  for (Alarm* alarm : {&first, &second}) {
    alarm->timer.context = alarm;
    alarm->timer.on_expiry = [](Timer& timer, Time now) {
      static_cast<Alarm*>(timer.context)->rang = now;
    };
  }
  cluster[0].loop().arm_st(first.timer, 100 * kMillisecond);
  cluster[0].loop().arm_st(second.timer, 200 * kMillisecond);
  cluster[0].turn(0);
  cluster[0].stall_until(kSecond);
  pass_time(cluster, 2 * kSecond);
  EXPECT_EQ(first.rang, kSecond);
  EXPECT_NEAR(static_cast<double>(second.rang), 1.1 * kSecond, kMillisecond);
}

}  // namespace
}  // namespace taco::harp
