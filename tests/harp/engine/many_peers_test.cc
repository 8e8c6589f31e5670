// An engine with very many peers: what each of them costs it, counted in turns and in sessions
// that are looked at.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>

#include "support/sim_cluster.h"
#include "support/sim_transfer.h"

namespace taco::harp {
namespace {

void meet(SimCluster& cluster) {
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

TEST(ManyPeers, IdleSessionsWakeNobodyAndAreLookedAtByNobody) {
  SimFaults faults;
  faults.receive_buffer = 8 << 20;
  SimCluster cluster(40, 1, faults);
  for (std::uint32_t i = 0; i < cluster.size(); ++i) cluster[i].set_security(Security::kAuth);
  meet(cluster);
  pass(cluster, 5 * kSecond);
  EngineLoop& loop = cluster[0].loop();
  EXPECT_FALSE(loop.has_open_requests_st());
  EXPECT_TRUE(loop.is_quiet_st());
  EXPECT_EQ(loop.awake(), 0u);
  EXPECT_EQ(loop.to_look_at(), 0u);
  const std::uint64_t turns = cluster[0].turns();
  pass(cluster, 600 * kSecond);
  EXPECT_EQ(cluster[0].turns(), turns);
  // Whoever leaves a wait() looks at those sessions only that have done something.
  Transfer one(1000, 100);
  cluster[0].send(1, one.send);
  cluster[1].recv(0, one.recv);
  EXPECT_TRUE(loop.has_open_requests_st());
  ASSERT_TRUE(cluster.run(cluster.now() + kSecond, [&] { return one.done(); }));
  pass(cluster, 5 * kSecond);
  EXPECT_EQ(loop.awake(), 0u);
}

// A session that has rested watches its peer like any other once something is wanted of it.
TEST(ManyPeers, ASessionThatHasRestedNoticesThatItsPeerIsGone) {
  for (const bool refused : {true, false}) {
    SimCluster cluster(2, 1, {});
    meet(cluster);
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
