// Where nothing answers any more, and the peer lives: it is asked by every way that may be left.
#include <gtest/gtest.h>

#include <deque>

#include "support/sim_cluster.h"
#include "support/sim_links.h"
#include "support/sim_transfer.h"

namespace taco::harp {
namespace {

// A peer is lost after 10 s of silence.
constexpr Duration kSoon = 9 * kSecond;

// Two hosts with two addresses each: on a network each (`rails`), or all on one.
class TwoHosts {
 public:
  TwoHosts(std::uint64_t seed, bool rails, std::uint32_t paths = 2)
      : cluster(2, seed, faults(rails), {.max_datagrams = {1472, 1472}}),
        leader(cluster[0].incarnation() < cluster[1].incarnation() ? 0 : 1),
        follower(1 - leader) {
    for (const std::uint32_t node : {0u, 1u}) cluster[node].set_paths(paths);
  }
  ~TwoHosts() { cluster.end(); }

  void move(std::uint32_t from, std::size_t bytes) {
    Transfer& transfer = transfers_.emplace_back(++tag_, bytes);
    cluster[1 - from].recv(from, transfer.recv);
    cluster[from].send(1 - from, transfer.send);
    EXPECT_TRUE(cluster.run(cluster.now() + kSoon, [&] { return transfer.done(); }));
    if (transfer.done()) transfer.check();
  }
  void pass(Duration time) {
    const Time until = cluster.now() + time;
    while (cluster.now() < until) {
      cluster.wake_at(until);
      cluster.run(until, [&] { return cluster.now() >= until; });
    }
  }
  // Nothing that is sent to this address arrives, for good, and nobody is told.
  void deafen(std::uint32_t node, std::uint32_t address) {
    cluster.network().kill_link(1 - node, node, kNever, address);
  }
  void kill(std::uint32_t address, Time until) {
    for (const std::uint32_t node : {0u, 1u}) {
      cluster.network().kill_link(node, 1 - node, until, address);
    }
  }
  const PathSet& paths(std::uint32_t node) { return cluster[node].session(1 - node)->paths(); }
  const Path& second(std::uint32_t node) { return *paths(node).find(wire::PathId{1}); }
  Endpoint address(std::uint32_t node, std::uint32_t i) {
    return cluster[node].sim_nic().addresses()[i].endpoint;
  }
  // Both send between these addresses of the two, by some path.
  bool are_joined(std::uint32_t of_leader, std::uint32_t of_follower) {
    const auto sends = [&](std::uint32_t node, std::uint32_t from, std::uint32_t to) {
      return std::ranges::any_of(paths(node), [&](const auto& path) {
        return path->is_live() && path->pair() == AddressPair{address(1 - node, to), from};
      });
    };
    return sends(leader, of_leader, of_follower) && sends(follower, of_follower, of_leader);
  }

  SimCluster cluster;
  const std::uint32_t leader, follower;

 private:
  static SimFaults faults(bool rails) {
    SimFaults faults = gigabit();
    faults.rails = rails;
    return faults;
  }

  std::deque<Transfer> transfers_;
  std::uint64_t tag_ = 0;
};

std::uint64_t packets_within(TwoHosts& hosts, Duration time) {
  std::uint64_t packets = 0;
  hosts.cluster.network().set_tap([&](const SimNetwork::Departure&) { ++packets; });
  hosts.pass(time);
  hosts.cluster.network().set_tap(nullptr);
  return packets;
}

// The second link comes and goes, the way there, while the first host sends: there its path rests
// in the end, for 16 s, when the link is well again.
void tire_out_second_path(TwoHosts& hosts) {
  hosts.move(0, 1 << 20);
  for (int times = 0; hosts.second(0).standing() != Path::Standing::kResting || times < 7;) {
    ASSERT_LE(++times, 100);
    for (int i = 0; i < 40 && !hosts.second(0).is_live(); ++i) hosts.pass(500 * kMillisecond);
    ASSERT_TRUE(hosts.second(0).is_live());
    hosts.cluster.network().kill_link(0, 1, hosts.cluster.now() + 400 * kMillisecond, 1);
    for (int i = 0; i < 40 && hosts.second(0).is_live(); ++i) hosts.move(0, 64 << 10);
    hosts.pass(450 * kMillisecond);
  }
}

TEST(Silence, APathThatRestsIsTriedWhereNothingElseAnswers) {
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    for (const std::uint32_t from : {0u, 1u}) {
      TwoHosts hosts(seed, /*rails=*/true);
      tire_out_second_path(hosts);
      const Time now = hosts.cluster.now();
      hosts.kill(0, kNever);
      hosts.move(from, 1 << 20);
      EXPECT_LE(hosts.cluster.now(), now + 3 * kSecond) << "seed " << seed << ", from " << from;
    }
  }
}

// A host whose cable has been plugged in anew tries at once, and the other one answers. That one
// has nothing but acknowledgements to send, so it hears its peer by the path that rests, and asks
// for nothing by the one that has died.
TEST(Silence, APathThatRestsForWhoeverAcknowledgesIsTriedToo) {
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    TwoHosts hosts(seed, /*rails=*/true);
    tire_out_second_path(hosts);
    for (const std::uint32_t missing : {2u, 0u}) {
      hosts.cluster[1].sim_nic().set_missing(missing);
      hosts.pass(100 * kMillisecond);
    }
    ASSERT_TRUE(hosts.second(1).is_live());
    ASSERT_EQ(hosts.second(0).standing(), Path::Standing::kResting);
    const Time now = hosts.cluster.now();
    hosts.kill(0, kNever);
    Transfer early(1000, 100);  // nobody waits for it yet
    hosts.cluster[1].send(0, early.send);
    EXPECT_TRUE(hosts.cluster.run(now + kSoon, [&] { return !hosts.cluster[1].busy(); }));
    EXPECT_LE(hosts.cluster.now(), now + 3 * kSecond) << "seed " << seed;
    hosts.cluster[0].recv(1, early.recv);
    EXPECT_TRUE(hosts.cluster.run(now + kSoon, [&] { return early.done(); }));
    early.check();
  }
}

// Each host loses another link, and neither knows which: there is no path between what is left.
TEST(Silence, AddressesThatNoPathJoinsAreTried) {
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    for (const std::uint32_t lost : {0u, 1u}) {
      TwoHosts hosts(seed, /*rails=*/false);
      hosts.move(0, 1 << 20);
      hosts.pass(kSecond);
      ASSERT_EQ(hosts.paths(0).live(), 2u);
      hosts.deafen(hosts.leader, lost);
      hosts.deafen(hosts.follower, 1 - lost);
      hosts.move(seed % 2, 1 << 20);
      EXPECT_TRUE(hosts.are_joined(1 - lost, lost)) << "seed " << seed << ", address " << lost;
    }
  }
}

// The same, and one side is told that it has lost its address.
TEST(Silence, AddressesAreTriedWhoseOwnPathBeginsAtOneThatIsGone) {
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    for (const std::uint32_t node : {0u, 1u}) {
      TwoHosts hosts(seed, /*rails=*/false);
      hosts.move(0, 1 << 20);
      hosts.pass(kSecond);
      hosts.cluster[node].sim_nic().set_missing(1);
      hosts.deafen(1 - node, 1);
      hosts.move(seed % 2, 1 << 20);
      EXPECT_TRUE(hosts.are_joined(node == hosts.leader ? 1 : 0, node == hosts.leader ? 0 : 1))
          << "seed " << seed << ", node " << node;
    }
  }
}

// Nothing leads to the peer that could say so: it is asked from the new address.
TEST(Silence, AnAddressThatIsNewIsTriedWithAllThatThePeerHasPublished) {
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    for (const std::uint32_t node : {0u, 1u}) {
      TwoHosts hosts(seed, /*rails=*/false);
      hosts.move(0, 1 << 20);
      hosts.pass(kSecond);
      hosts.deafen(1 - node, 0);
      hosts.deafen(node, 1);
      hosts.cluster[node].sim_nic().renumber(0);
      hosts.move(seed % 2, 1 << 20);
      EXPECT_TRUE(hosts.are_joined(node == hosts.leader ? 2 : 1, node == hosts.leader ? 1 : 2))
          << "seed " << seed << ", node " << node;
    }
  }
}

// Hellos crossed, so that the side which does not lead has its path on the second network, and the
// other one on the first. The second dies, and the address on the first is renewed: nobody can tell
// the leading side, which sends to the old one.
TEST(Silence, AnAddressThatIsNewIsTriedWherePathsAreOnNetworksOfTheirOwn) {
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    TwoHosts hosts(seed, /*rails=*/true);
    SimCluster& cluster = hosts.cluster;
    const std::uint32_t leader = hosts.leader, follower = hosts.follower;
    cluster.network().kill_link(follower, leader, kSecond, 0);
    for (const std::uint32_t node : {leader, follower}) cluster[node].matcher(1 - node);
    hosts.pass(kMillisecond);
    cluster[leader].stall_until(100 * kMillisecond);
    ASSERT_TRUE(
        cluster.run(kSecond, [&] { return cluster[follower].session(leader)->established(); }));
    cluster.network().kill_link(leader, follower, kNever, 1);
    hosts.pass(200 * kMillisecond);
    ASSERT_EQ(hosts.paths(leader).first().pair().local, 0u);
    ASSERT_EQ(hosts.paths(follower).first().pair().local, 1u);
    cluster.network().kill_link(follower, leader, kNever, 1);
    cluster[follower].sim_nic().renumber(0);
    hosts.move(seed % 2, 1 << 20);
    EXPECT_TRUE(hosts.are_joined(0, 2)) << "seed " << seed;
  }
}

// By another address of one's own, where the peer has but one.
TEST(Silence, AnAddressWithoutAPathIsTried) {
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    for (const std::uint32_t node : {0u, 1u}) {
      TwoHosts hosts(seed, /*rails=*/false, /*paths=*/1);
      hosts.deafen(1 - node, 1);
      hosts.move(0, 1 << 20);
      hosts.deafen(node, 0);
      hosts.move(seed % 2, 1 << 20);
      EXPECT_TRUE(hosts.are_joined(node == hosts.leader ? 1 : 0, node == hosts.leader ? 0 : 1))
          << "seed " << seed << ", node " << node;
    }
  }
}

TEST(Silence, HellosThatNobodyAnswersAreSaidBetweenAllAddresses) {
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    for (const std::uint32_t lost : {0u, 1u}) {
      TwoHosts hosts(seed, /*rails=*/false);
      hosts.deafen(hosts.leader, lost);
      hosts.deafen(hosts.follower, 1 - lost);
      hosts.move(seed % 2, 1 << 20);
      EXPECT_TRUE(hosts.are_joined(1 - lost, lost)) << "seed " << seed << ", address " << lost;
      hosts.pass(kSecond);
      EXPECT_LE(hosts.paths(0).count(), 3u);
    }
  }
}

// The second link is dead when the session begins, so that the side that does not lead knows of no
// path there: only its word tells that it has another address there by now.
TEST(Silence, APathThatWasNeverProvedGoesWhereThePeerSaysThatItIs) {
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    TwoHosts hosts(seed, /*rails=*/true);
    hosts.kill(1, 2 * kSecond);
    hosts.move(0, 1 << 20);
    hosts.pass(kSecond);
    hosts.cluster[hosts.follower].sim_nic().renumber(1);
    hosts.move(0, 1 << 20);
    ASSERT_EQ(hosts.paths(0).live(), 1u);
    for (int i = 0; i < 10 && hosts.paths(0).live() < 2; ++i) {
      hosts.move(0, 1 << 10);
      hosts.pass(kSecond);
    }
    EXPECT_TRUE(hosts.are_joined(1, 2)) << "seed " << seed;
    EXPECT_LE(packets_within(hosts, 10 * kSecond), 20u) << "of an idle session, seed " << seed;
  }
}

// Ways there are many, and none leads anywhere: both sides ask no more often than they ping.
TEST(Silence, NobodyIsAskedMoreOftenForManyAddresses) {
  std::uint64_t most[2] = {};
  for (const std::uint32_t paths : {1u, 2u}) {
    TwoHosts hosts(1, /*rails=*/paths == 1, paths);
    hosts.move(0, 1 << 20);
    hosts.pass(kSecond);
    for (const std::uint32_t node : {0u, 1u}) {
      hosts.cluster.network().kill_link(node, 1 - node, kNever);
    }
    Transfer lost(1000, 1 << 20);
    hosts.cluster[0].send(1, lost.send);
    most[paths - 1] = packets_within(hosts, kSoon);
    hosts.cluster[0].drop(1);
  }
  EXPECT_LE(most[1], 2 * 2 * most[0]) << "two paths, each with a ping and what it asks";
}

}  // namespace
}  // namespace taco::harp
