// Hosts that come to have one more address in the middle of a job: another link between them.
#include <gtest/gtest.h>

#include <cstdio>
#include <deque>

#include "support/median.h"
#include "support/sim_cluster.h"
#include "support/sim_links.h"
#include "support/sim_transfer.h"

namespace taco::harp {
namespace {

constexpr std::size_t kLarge = 20 << 20;

struct TwoHosts {
  // The second half of `ports` at each address is there for paths to be moved to.
  explicit TwoHosts(std::uint64_t seed, std::uint32_t links = 1, std::uint32_t ports = 1)
      : cluster(2, seed, gigabit(),
                {.max_datagrams = std::vector<std::size_t>(links, 1472),
                 .ports = ports,
                 .spare_ports = ports / 2}) {
    const std::uint32_t paths = ports > 1 ? ports / 2 : links;
    for (const std::uint32_t node : {0u, 1u}) cluster[node].set_paths(paths);
  }
  ~TwoHosts() { cluster.end(); }

  // Virtual seconds.
  double move(std::size_t bytes) {
    const Time start = cluster.now();
    Transfer& transfer = transfers.emplace_back(++tag, bytes);
    cluster[1].recv(0, transfer.recv);
    cluster[0].send(1, transfer.send);
    EXPECT_TRUE(cluster.run(start + 20 * kSecond, [&] { return transfer.done(); }));
    if (transfer.done()) transfer.check();
    return static_cast<double>(cluster.now() - start) / kSecond;
  }
  void pass(Duration time) {
    const Time until = cluster.now() + time;
    cluster.wake_at(until);
    cluster.run(until, [&] { return cluster.now() >= until; });
  }
  void add_address(std::uint32_t node) { cluster[node].sim_nic().add_address(1472); }
  std::size_t live(std::uint32_t node) { return cluster[node].session(1 - node)->paths().live(); }

  SimCluster cluster;
  std::deque<Transfer> transfers;
  std::uint64_t tag = 0;
};

// Whichever comes first, and whichever side leads.
TEST(NewAddresses, TheyAreAnotherPathOnceBothHostsHaveOne) {
  int led = 0;
  std::vector<double> gains;
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    for (const std::uint32_t first : {0u, 1u}) {
      TwoHosts hosts(seed);
      const double alone = hosts.move(kLarge);
      hosts.add_address(first);
      hosts.move(1 << 20);
      EXPECT_EQ(hosts.live(0), 1u) << "an address of one side leads nowhere";
      hosts.add_address(1 - first);
      hosts.move(1 << 20);
      hosts.pass(kSecond);
      EXPECT_EQ(hosts.live(0), 2u) << "seed " << seed << ", host " << first << " first";
      EXPECT_EQ(hosts.live(1), 2u);
      hosts.move(kLarge);
      const double together = hosts.move(kLarge);
      gains.push_back(alone / together);
      led += hosts.cluster[0].incarnation() < hosts.cluster[1].incarnation() ? 1 : 0;
    }
  }
  EXPECT_GE(median(gains), 1.8);
  EXPECT_TRUE(led > 0 && led < 12) << "the sender always leads, or never";
}

TEST(NewAddresses, ThoseOfBeforeASessionBeginsServeItToo) {
  TwoHosts hosts(1);
  for (std::uint32_t node : {0u, 1u}) {
    hosts.add_address(node);
    hosts.cluster[node].set_now(hosts.cluster.now());
  }
  hosts.move(1 << 20);
  hosts.pass(kSecond);
  EXPECT_EQ(hosts.live(0), 2u);
  EXPECT_EQ(hosts.live(1), 2u);
}

// The second link swallows everything.
TEST(NewAddresses, OneByWhichNothingAnswersCostsNothing) {
  TwoHosts hosts(3);
  for (std::uint32_t node : {0u, 1u}) {
    hosts.cluster.network().kill_link(node, 1 - node, kNever, 1);
  }
  const double alone = hosts.move(kLarge);
  for (std::uint32_t node : {0u, 1u}) hosts.add_address(node);
  hosts.pass(kSecond);
  EXPECT_EQ(hosts.live(0), 1u);
  EXPECT_LE(hosts.move(kLarge), 1.05 * alone);
}

TEST(NewAddresses, OneThatIsGoneAgainIsLeftAndUsedWhenItIsBack) {
  TwoHosts hosts(2);
  hosts.move(1 << 20);
  for (std::uint32_t node : {0u, 1u}) hosts.add_address(node);
  hosts.move(1 << 20);
  hosts.pass(kSecond);
  ASSERT_EQ(hosts.live(0), 2u);
  hosts.cluster[0].sim_nic().set_missing(2);
  hosts.move(kLarge);
  EXPECT_EQ(hosts.live(0), 1u);
  hosts.cluster[0].sim_nic().set_missing(0);
  hosts.move(1 << 20);
  hosts.pass(2 * kSecond);
  EXPECT_EQ(hosts.live(0), 2u);
}

// As TACO_PATHS has it: as many paths as an address of the start, by ports of their own.
TEST(NewAddresses, TheyHaveAsManyPathsAsThoseOfTheStart) {
  for (const std::uint32_t ports : {4u, 6u}) {
    const std::size_t paths = ports / 2;
    for (const std::uint32_t first : {0u, 1u}) {
      TwoHosts hosts(8, 1, ports);
      hosts.move(1 << 20);
      hosts.pass(kSecond);
      ASSERT_EQ(hosts.live(0), paths);
      for (const std::uint32_t node : {first, 1 - first}) hosts.add_address(node);
      hosts.move(1 << 20);
      hosts.pass(kSecond);
      for (const std::uint32_t node : {0u, 1u}) {
        EXPECT_EQ(hosts.live(node), 2 * paths) << "host " << first << " first";
        EXPECT_EQ(hosts.cluster[node].session(1 - node)->paths().count(), 2 * paths);
      }
      // And so has what takes their place.
      hosts.cluster[first].sim_nic().renumber(1);
      hosts.move(kLarge);
      hosts.pass(2 * kSecond);
      EXPECT_EQ(hosts.live(0), 2 * paths);
      EXPECT_EQ(hosts.live(1), 2 * paths);
    }
  }
}

// A lease is renewed with another address: of the side that leads, of the other one, of both at
// once.
TEST(NewAddresses, OneThatTakesThePlaceOfAnotherHasItsPath) {
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    for (const std::uint32_t who : {1u, 2u, 3u}) {
      for (const std::uint32_t link : {0u, 1u}) {
        TwoHosts hosts(seed, 2);
        hosts.move(1 << 20);
        hosts.pass(kSecond);
        ASSERT_EQ(hosts.live(0), 2u);
        for (const std::uint32_t node : {0u, 1u}) {
          if ((who >> node & 1) != 0) hosts.cluster[node].sim_nic().renumber(link);
        }
        hosts.move(kLarge);
        hosts.pass(kSecond);
        for (const std::uint32_t node : {0u, 1u}) {
          EXPECT_EQ(hosts.live(node), 2u)
              << "seed " << seed << ", hosts " << who << ", link " << link;
        }
      }
    }
  }
}

// The address that is gone was the only one.
TEST(NewAddresses, OneThatTakesThePlaceOfTheOnlyOneCarriesOn) {
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    for (const std::uint32_t node : {0u, 1u}) {
      for (const std::uint32_t from : {0u, 1u}) {
        TwoHosts hosts(seed);
        hosts.move(1 << 20);
        hosts.pass(kSecond);
        hosts.cluster[node].sim_nic().renumber(0);
        hosts.pass(from * 10 * kMillisecond);
        hosts.move(kLarge);
        EXPECT_EQ(hosts.live(0), 1u) << "seed " << seed << ", host " << node;
        EXPECT_EQ(hosts.live(1), 1u);
      }
    }
  }
}

// Hellos crossed: either side has come to the other by a link of its own, and each link is dead the
// other way. So the side that leads never hears from the address that it sends to; when another one
// takes its place, only the peer's word tells of it. Whether the link that is dead for good was
// given up before or not.
TEST(NewAddresses, OneThatTakesThePlaceOfTheOnlyOneThatWasReachedIsFound) {
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    for (const Duration before : {Duration{0}, kSecond}) {
      TwoHosts hosts(seed, 2);
      SimCluster& cluster = hosts.cluster;
      const std::uint32_t leader = cluster[0].incarnation() < cluster[1].incarnation() ? 0 : 1;
      const std::uint32_t follower = 1 - leader;
      cluster.network().kill_link(follower, leader, 2 * kSecond, 0);
      for (const std::uint32_t node : {leader, follower}) cluster[node].matcher(1 - node);
      hosts.pass(kMillisecond);
      cluster[leader].stall_until(100 * kMillisecond);
      ASSERT_TRUE(
          cluster.run(kSecond, [&] { return cluster[follower].session(leader)->established(); }));
      cluster.network().kill_link(leader, follower, kNever, 1);
      if (before > 0) hosts.move(1 << 20);
      hosts.pass(before);
      const SimNic& there = cluster[follower].sim_nic();
      const auto first_of = [&](std::uint32_t node) {
        return cluster[node].session(1 - node)->paths().first().pair();
      };
      ASSERT_EQ(first_of(leader).remote, there.addresses()[0].endpoint);
      ASSERT_EQ(first_of(follower).local, 1u);
      cluster[follower].sim_nic().renumber(0);
      hosts.move(kLarge);
      EXPECT_EQ(first_of(leader).remote, there.addresses()[2].endpoint) << "seed " << seed;
      EXPECT_EQ(first_of(follower).local, 2u);
    }
  }
}

// In the middle of a handshake.
TEST(NewAddresses, OneThatTakesThePlaceOfTheOnlyOneSaysHello) {
  for (const std::uint32_t node : {0u, 1u}) {
    TwoHosts hosts(7);
    for (const std::uint32_t from : {0u, 1u}) {
      hosts.cluster.network().kill_link(from, 1 - from, 50 * kMillisecond);
      hosts.cluster[from].matcher(1 - from);
    }
    hosts.pass(20 * kMillisecond);
    hosts.cluster[node].sim_nic().renumber(0);
    hosts.move(1 << 20);
    EXPECT_EQ(hosts.live(0), 1u) << "host " << node;
  }
}

TEST(NewAddresses, RenewingThemAgainAndAgainUsesUpNoPaths) {
  for (const std::uint32_t node : {0u, 1u}) {
    TwoHosts hosts(5, 2);
    hosts.move(1 << 20);
    for (int i = 0; i < 14; ++i) {
      const std::uint32_t link = i == 0 ? 1u : 1u + static_cast<std::uint32_t>(i);
      hosts.cluster[node].sim_nic().renumber(link);
      if (i % 3 == 2) {
        hosts.cluster[1 - node].sim_nic().renumber(1 + static_cast<std::uint32_t>(i) / 3);
      }
      hosts.move(1 << 20);
      hosts.pass(2 * kSecond);
      ASSERT_EQ(hosts.live(0), 2u) << "after " << i;
      ASSERT_EQ(hosts.live(1), 2u);
      EXPECT_LE(hosts.cluster[0].session(1)->paths().count(), 3u);
    }
  }
}

// And back again: to one that it has had before.
TEST(NewAddresses, OneThatIsBackAfterAnotherHadItsPlaceHasAPathAgain) {
  for (const std::uint32_t node : {0u, 1u}) {
    TwoHosts hosts(6, 2);
    hosts.move(1 << 20);
    hosts.cluster[node].sim_nic().renumber(1);
    hosts.move(1 << 20);
    hosts.pass(2 * kSecond);
    hosts.cluster[node].sim_nic().set_missing(4);
    hosts.move(kLarge);
    hosts.pass(2 * kSecond);
    EXPECT_EQ(hosts.live(0), 2u);
    EXPECT_EQ(hosts.live(1), 2u);
  }
}

}  // namespace
}  // namespace taco::harp
