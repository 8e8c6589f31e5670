// Sessions that use several paths: what they carry together, and what one that dies costs.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "base/log.h"
#include "support/median.h"
#include "support/sim_cluster.h"
#include "support/sim_links.h"
#include "support/sim_random.h"
#include "support/sim_transfer.h"

namespace taco::harp {
namespace {

struct TwoHosts {
  explicit TwoHosts(std::uint32_t paths, std::uint64_t seed = 1,
                    const SimFaults& faults = gigabit())
      : cluster(2, seed, faults) {
    for (std::uint32_t node : {0u, 1u}) cluster[node].set_paths(paths);
  }

  // Virtual seconds.
  double move(std::size_t bytes, Duration limit = 20 * kSecond,
              const std::function<void()>& disturb = nullptr) {
    const Time start = cluster.now();
    if (!transfers.empty() && transfers.back().done()) transfers.pop_back();
    Transfer& transfer = transfers.emplace_back(++tag, bytes);
    cluster[1].matcher(0).recv(transfer.recv);
    cluster[0].matcher(1).send(transfer.send);
    const bool done = cluster.run(
        start + limit, [&] { return transfer.done(); }, disturb);
    EXPECT_TRUE(done) << "the message did not arrive";
    if (done) transfer.check();
    return static_cast<double>(cluster.now() - start) / kSecond;
  }
  // Lets time pass, with somebody who expects something.
  void wait(Duration time) {
    const Time until = cluster.now() + time;
    cluster.run(until, [] { return false; });
  }
  // The same, and nobody has anything to do at its end.
  void pass(Duration time) {
    const Time until = cluster.now() + time;
    cluster.wake_at(until);
    cluster.run(until, [&] { return cluster.now() >= until; });
  }
  void kill(std::uint32_t address, Duration time, bool both = true) {
    cluster.network().kill_link(0, 1, cluster.now() + time, address);
    if (both) cluster.network().kill_link(1, 0, cluster.now() + time, address);
  }
  std::uint64_t left() {
    return cluster[0].counters().paths_left + cluster[1].counters().paths_left;
  }
  std::string paths_of(std::uint32_t node) {
    std::string text = "node " + std::to_string(node) + ":\n";
    for (const PathReport& path : cluster[node].loop().paths_st()) {
      text += "  " + path.local + " to " + path.remote + " " + path.state + "\n";
    }
    return text;
  }
  std::size_t live(std::uint32_t node) { return cluster[node].session(1 - node)->paths().live(); }

  SimCluster cluster;
  std::deque<Transfer> transfers;
  std::uint64_t tag = 0;
};

constexpr std::size_t kLarge = 40 << 20;

TEST(ManyPaths, TwoEqualLinksCarryNearlyTwiceAsMuch) {
  const double gain = median_over_seeds([](std::uint64_t seed) {
    TwoHosts one(1, seed), two(2, seed);
    one.move(1 << 20);
    two.move(1 << 20);
    const double alone = one.move(kLarge), together = two.move(kLarge);
    EXPECT_EQ(two.left(), 0u);
    return alone / together;
  });
  std::printf("two links: %.2fx\n", gain);
  EXPECT_GE(gain, 1.9);
}

TEST(ManyPaths, FourLinksCarryNearlyFourTimesAsMuch) {
  const double gain = median_over_seeds([](std::uint64_t seed) {
    TwoHosts one(1, seed), four(4, seed);
    one.move(1 << 20);
    four.move(1 << 20);
    return one.move(kLarge) / four.move(kLarge);
  });
  std::printf("four links: %.2fx\n", gain);
  EXPECT_GE(gain, 3.7);
}

TEST(ManyPaths, LinksOfOneToThreeCarryNearlyTheirSum) {
  const double limit = kLarge * 1472.0 / 1440 / (kGigabit * 4 / 3);
  const double share = median_over_seeds([&](std::uint64_t seed) {
    TwoHosts hosts(2, seed);
    for (std::uint32_t node : {0u, 1u}) hosts.cluster.network().set_rate(node, 1, kGigabit / 3);
    hosts.move(1 << 20);
    return limit / hosts.move(kLarge);
  });
  std::printf("%.3f of the limit\n", share);
  EXPECT_GE(share, 0.9);
}

TEST(ManyPaths, ALinkThatSlowsDownCarriesItsShareSoon) {
  TwoHosts hosts(2);
  hosts.move(kLarge);
  hosts.cluster.network().set_rate(0, 1, kGigabit / 10);
  const double limit = kLarge * 1472.0 / 1440 / (kGigabit * 1.1);
  const double seconds = hosts.move(kLarge);
  std::printf("%.1f ms, limit %.1f ms\n", seconds * 1e3, limit * 1e3);
  EXPECT_LE(seconds, limit + 0.25);
}

TEST(ManyPaths, ALinkThatDiesIsLeftWithinHalfASecondAndComesBack) {
  for (const bool both : {true, false}) {
    for (std::uint32_t address : {0u, 1u}) {
      TwoHosts hosts(2, 7 + address);
      hosts.move(kLarge);
      const double undisturbed = hosts.move(kLarge);
      Time dead = hosts.cluster.now() + 20 * kMillisecond;
      bool killed = false;
      hosts.cluster.wake_at(dead);
      const double seconds = hosts.move(kLarge, 20 * kSecond, [&] {
        if (!killed && hosts.cluster.now() >= dead) {
          killed = true;
          hosts.kill(address, 3 * kSecond, both);
        }
      });
      std::printf("link %u dies%s: %.0f ms, undisturbed %.0f ms\n", address, both ? "" : " one way",
                  seconds * 1e3, undisturbed * 1e3);
      EXPECT_LE(seconds, 2 * undisturbed + 0.5);
      EXPECT_GE(hosts.left(), 1u);
      EXPECT_EQ(hosts.live(0), 1u);
      while (hosts.cluster.now() < dead + 3 * kSecond) hosts.move(1 << 20);
      const Time back = hosts.cluster.now();
      while (hosts.live(0) < 2 && hosts.cluster.now() < back + 3 * kSecond) hosts.move(1 << 20);
      EXPECT_LE(hosts.cluster.now() - back, 2 * kSecond);
      EXPECT_LE(hosts.move(kLarge), 1.1 * undisturbed);
      if (testing::Test::HasFailure()) return;
    }
  }
}

// A firewall that comes between: what it says is heard, instead of waiting for silence.
TEST(ManyPaths, ALinkThatRefusesIsLeftAtOnce) {
  for (std::uint32_t address : {0u, 1u}) {
    TwoHosts hosts(2, 7 + address);
    hosts.move(kLarge);
    SimCluster& cluster = hosts.cluster;
    Transfer transfer(99, kLarge);
    cluster[1].recv(0, transfer.recv);
    cluster[0].send(1, transfer.send);
    cluster.run(cluster.now() + 10 * kMillisecond, [] { return false; });
    cluster.network().refuse_at(1, address);
    EXPECT_TRUE(cluster.run(cluster.now() + 50 * kMillisecond,
                            [&] { return cluster[0].counters().paths_left > 0; }));
    EXPECT_EQ(cluster[0].session(1)->paths().live(), 1u);
    ASSERT_TRUE(cluster.run(cluster.now() + 10 * kSecond, [&] { return transfer.done(); }));
    transfer.check();
  }
}

// Which anybody could have made up who has seen one packet.
TEST(ManyPaths, OneRefusalAloneEndsNoPath) {
  for (std::uint32_t address : {0u, 1u}) {
    TwoHosts hosts(2, 7 + address);
    hosts.move(kLarge);
    SimCluster& cluster = hosts.cluster;
    const std::uint64_t before = cluster.network().counts().unreachable;
    Transfer waiting(99, 100);
    cluster[0].recv(1, waiting.recv);  // so that the peer is asked for signs of life
    cluster.network().refuse_at(1, address);
    ASSERT_TRUE(cluster.run(cluster.now() + kSecond,
                            [&] { return cluster.network().counts().unreachable > before; }));
    cluster.network().admit_at(1, address);
    cluster.run(cluster.now() + kSecond, [] { return false; });
    EXPECT_EQ(cluster[0].counters().paths_left, 0u);
    cluster[1].send(0, waiting.send);
    ASSERT_TRUE(cluster.run(cluster.now() + kSecond, [&] { return waiting.done(); }));
  }
}

// It leaves with a goodbye, which may well overtake what acknowledges the other links' last
// packets.
TEST(ManyPaths, WhoHasReceivedAllAndLeavesTellsSoByWhicheverLinkIsLeft) {
  for (std::uint32_t address = 0; address < 4; ++address) {
    SCOPED_TRACE("acknowledgements by link " + std::to_string(address) + " are lost");
    TwoHosts hosts(4);
    hosts.move(kLarge);
    Transfer transfer(1000, kLarge);
    hosts.cluster[1].matcher(0).recv(transfer.recv);
    hosts.cluster[0].matcher(1).send(transfer.send);
    bool has_left = false;
    const auto leave = [&] {
      if (has_left || transfer.received.calls == 0) return;
      has_left = true;
      hosts.cluster.network().kill_link(1, 0, kNever, address);
      hosts.cluster[1].leave();
    };
    const Time limit = hosts.cluster.now() + 20 * kSecond;
    EXPECT_TRUE(hosts.cluster.run(
        limit, [&] { return transfer.done(); }, leave));
    transfer.check();
  }
}

std::vector<std::string> said;

// A firewall on one of several links, from the start, for both directions or for one.
TEST(ManyPaths, ASessionOpensByAnyLinkThatWorks) {
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    for (std::uint32_t dead = 0; dead < 4; ++dead) {
      for (const int direction : {0, 1, 2}) {
        SCOPED_TRACE("seed " + std::to_string(seed) + ", dead up to link " + std::to_string(dead) +
                     ", direction " + std::to_string(direction));
        SimFaults faults = gigabit();
        faults.jitter = 200 * kMicrosecond;
        TwoHosts hosts(5, seed, faults);
        said.clear();
        set_log_sink([](LogLevel, std::string_view line) { said.emplace_back(line); });
        for (std::uint32_t address = 0; address <= dead; ++address) {
          SimNetwork& network = hosts.cluster.network();
          if (direction != 1) network.kill_link(0, 1, 1000 * kSecond, address);
          if (direction != 0) network.kill_link(1, 0, 1000 * kSecond, address);
        }
        if (seed % 3 != 1) hosts.cluster[1].matcher(0);  // both say hello
        if (seed % 3 == 2) hosts.cluster[0].stall_until(static_cast<Time>(seed) * 3 * kMillisecond);
        if (seed % 3 == 1) hosts.cluster[1].stall_until(static_cast<Time>(seed) * 2 * kMillisecond);
        const double first = hosts.move(1000);
        EXPECT_LE(first, 0.3);
        const auto is_named = [&](std::uint32_t address) {
          const std::string from = "the path from 10." + std::to_string(address) + ".0.";
          return std::any_of(said.begin(), said.end(), [&](const std::string& line) {
            return line.find(from) != std::string::npos;
          });
        };
        // A session begun by a link that is dead one way only is noticed by packets that come
        // meanwhile.
        for (int i = 0; i < 20; ++i) {
          hosts.pass(250 * kMillisecond);
          hosts.move(100'000);
        }
        set_log_sink(nullptr);
        for (std::uint32_t address = 0; address <= dead; ++address) {
          EXPECT_TRUE(is_named(address)) << "link " << address << testing::PrintToString(said)
                                         << hosts.paths_of(0) << hosts.paths_of(1);
        }
        EXPECT_EQ(hosts.live(0), 4u - dead) << hosts.paths_of(0) << hosts.paths_of(1);
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

// As when the sides have begun by different ones: the side that leads follows the other one, and
// what it has at those addresses already takes the place that has become free.
TEST(ManyPaths, APathThatMovesLeavesItsAddressesToTheOneWhosePlaceItTakes) {
  TwoHosts hosts(2);
  hosts.move(1 << 20);
  const std::uint32_t leader =
      hosts.cluster[0].incarnation() < hosts.cluster[1].incarnation() ? 0 : 1;
  Session& follower = *hosts.cluster[1 - leader].session(leader);
  const auto pair_of = [](const Session& session, int id) {
    return session.paths().find(wire::PathId(id))->pair();
  };
  const AddressPair first = pair_of(follower, 0), second = pair_of(follower, 1);
  const Session& led = *hosts.cluster[leader].session(1 - leader);
  const AddressPair led_first = pair_of(led, 0), led_second = pair_of(led, 1);
  hosts.cluster.network().kill_link(leader, 1 - leader, hosts.cluster.now() + kSecond, 0);
  follower.move_to(second);
  for (int i = 0; i < 40; ++i) {
    hosts.move(1 << 20);
    hosts.wait(200 * kMillisecond);
  }
  EXPECT_TRUE(pair_of(follower, 0) == second && pair_of(follower, 1) == first)
      << hosts.paths_of(1 - leader);
  EXPECT_TRUE(pair_of(led, 0) == led_second && pair_of(led, 1) == led_first)
      << hosts.paths_of(leader);
  EXPECT_EQ(hosts.live(0), 2u);
  EXPECT_EQ(hosts.live(1), 2u);
}

// Hellos that crossed have the side which does not lead follow with one path after the other, so
// that for a moment both are at the same two addresses.
TEST(ManyPaths, TheLogTellsOfPathsOnceEachHasAddressesOfItsOwn) {
  static std::vector<std::string> said;
  std::size_t told = 0;
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    said.clear();
    set_log_sink([](LogLevel, std::string_view line) { said.emplace_back(line); });
    TwoHosts hosts(2, seed);
    SimRandom random(seed);
    for (const std::uint32_t link : {0u, 1u}) {
      for (const std::uint32_t from : {0u, 1u}) {
        const Time until = random.between(0, 1200 * kMillisecond);
        if (random.below(2) == 1) hosts.cluster.network().kill_link(from, 1 - from, until, link);
      }
    }
    hosts.cluster[1].matcher(0);  // both say hello
    hosts.cluster[random.below(2)].stall_until(random.between(0, 1500 * kMillisecond));
    for (int i = 0; i < 60; ++i) {
      hosts.move(1000);
      hosts.pass(20 * kMillisecond);
    }
    set_log_sink(nullptr);
    for (const std::string& line : said) {
      if (line.find("2 of 2 paths to") == std::string::npos) continue;
      ++told;
      EXPECT_NE(line.find(" 10.0.0."), std::string::npos) << "seed " << seed << ": " << line;
      EXPECT_NE(line.find(" 10.1.0."), std::string::npos) << "seed " << seed << ": " << line;
    }
  }
  EXPECT_GE(told, 500u);
}

// A firewall on one of two links: what is sent in vain must not use up credit.
TEST(ManyPaths, ALinkThatNeverAnswersCostsNothing) {
  SimFaults faults = gigabit();
  faults.receive_buffer = 512 * 1024;  // for 113 packets, and there are 300 challenges
  TwoHosts hosts(2, 1, faults);
  hosts.kill(1, 1000 * kSecond);
  const double first = hosts.move(kLarge);
  for (int i = 0; i < 300; ++i) {
    hosts.move(1 << 10);
    hosts.wait(kSecond);
  }
  EXPECT_EQ(hosts.live(0), 1u);
  EXPECT_LE(hosts.move(kLarge), 1.05 * first);
}

// All the credit there is may be lost with a path. The record that says so must not wait for it.
TEST(ManyPaths, APathThatDiesWithAllCreditDoesNotStopTheOthers) {
  SimFaults faults = gigabit();
  faults.receive_buffer = 96 * 1024;  // credit for 21 packets
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    TwoHosts hosts(2, seed, faults);
    hosts.move(100'000);
    const Time dead = hosts.cluster.now() + static_cast<Time>(seed) * 100 * kMicrosecond;
    bool killed = false;
    hosts.cluster.wake_at(dead);
    hosts.move(2 << 20, 20 * kSecond, [&] {
      if (killed || hosts.cluster.now() < dead) return;
      killed = true;
      hosts.kill(1, 1000 * kSecond);
    });
    ASSERT_FALSE(HasFailure()) << "seed " << seed;
  }
}

// As a sender does that asks for credit all the time.
TEST(ManyPaths, APathThatIsPingedAllTheTimeIsLeftWhenItIsSilent) {
  TwoHosts hosts(2);
  hosts.move(1 << 20);
  hosts.kill(1, 1000 * kSecond);
  for (int i = 0; i < 400 && hosts.live(0) == 2; ++i) {
    hosts.cluster[0].session(1)->probe();
    const Time until = hosts.cluster.now() + 2 * kMillisecond;
    hosts.cluster.wake_at(until);
    hosts.cluster.run(until, [&] { return hosts.cluster.now() >= until; });
  }
  EXPECT_EQ(hosts.live(0), 1u);
}

TEST(ManyPaths, ALinkThatComesAndGoesRestsLonger) {
  TwoHosts hosts(2);
  hosts.move(kLarge);
  const Time until = hosts.cluster.now() + 30 * kSecond;
  Time next = 0;
  while (hosts.cluster.now() < until) {
    hosts.move(4 << 20, 20 * kSecond, [&] {
      if (hosts.cluster.now() < next) return;
      hosts.kill(1, 400 * kMillisecond);
      next = hosts.cluster.now() + 800 * kMillisecond;
      hosts.cluster.wake_at(next);
    });
    hosts.wait(50 * kMillisecond);
  }
  std::printf("left %llu times in 37 deaths\n", static_cast<unsigned long long>(hosts.left()));
  EXPECT_LE(hosts.left(), 16u);  // by both sides together
}

// Stalls of the peer's process are no fault of any path.
TEST(ManyPaths, AProcessThatStallsBlamesNoPath) {
  TwoHosts hosts(3);
  hosts.move(kLarge);
  for (int i = 0; i < 20; ++i) {
    hosts.cluster[1].stall_until(hosts.cluster.now() + 400 * kMillisecond);
    hosts.move(4 << 20);
  }
  EXPECT_EQ(hosts.left(), 0u);
}

TEST(ManyPaths, AWideAndANarrowLinkCarryWhatFitsBoth) {
  SimFaults faults = gigabit();
  faults.max_datagram = 8972;
  TwoHosts hosts(2, 1, faults);
  hosts.cluster.network().set_mtu(0, 1, 1472, 1);
  hosts.cluster.network().set_mtu(1, 0, 1472, 1);
  hosts.move(1 << 20);
  hosts.move(kLarge);
  const double limit = kLarge * 1472.0 / 1440 / (2 * kGigabit);
  const double seconds = hosts.move(kLarge);
  std::printf("%.1f ms, limit %.1f ms\n", seconds * 1e3, limit * 1e3);
  EXPECT_LE(seconds, 1.15 * limit);
}

TEST(ManyPaths, AnAddressThatGoesIsLeftAtOnceAndUsedAgainWhenItIsBack) {
  for (std::uint32_t node : {0u, 1u}) {
    for (std::uint32_t address : {0u, 1u}) {
      SCOPED_TRACE("address " + std::to_string(address) + " of node " + std::to_string(node));
      TwoHosts hosts(3);
      hosts.move(kLarge);
      said.clear();
      set_log_sink([](LogLevel, std::string_view line) { said.emplace_back(line); });
      hosts.wait(10 * kSecond);  // of a path that has lived for a while
      hosts.cluster[node].sim_nic().set_missing(1u << address);
      hosts.wait(kMillisecond);
      EXPECT_EQ(hosts.live(node), 2u) << "although nothing is under way";
      hosts.move(kLarge);
      hosts.wait(5 * kSecond);
      set_log_sink(nullptr);
      const std::string name = "10." + std::to_string(address) + ".0." + std::to_string(node);
      const auto tells = [&](const std::string& line) {
        return line.find("no longer has the address " + name + ",") != std::string::npos;
      };
      EXPECT_EQ(std::count_if(said.begin(), said.end(), tells), 1);
      EXPECT_LE(said.size(), 2u) << "the other side may tell of its silence";
      hosts.cluster[node].sim_nic().set_missing(0);
      hosts.wait(100 * kMillisecond);
      EXPECT_EQ(hosts.live(node), 3u);
      hosts.move(kLarge);
    }
  }
}

TEST(ManyPaths, AnOnlyAddressIsWaitedFor) {
  TwoHosts hosts(1);
  hosts.move(1 << 20);
  hosts.cluster[0].sim_nic().set_missing(1);
  hosts.cluster.wake_at(hosts.cluster.now() + 3 * kSecond);
  const Time back = hosts.cluster.now() + 3 * kSecond;
  bool missing = true;
  hosts.move(1 << 20, 20 * kSecond, [&] {
    if (!missing || hosts.cluster.now() < back) return;
    missing = false;
    hosts.cluster[0].sim_nic().set_missing(0);
  });
  EXPECT_GE(hosts.cluster.now(), back);
  EXPECT_EQ(hosts.left(), 0u);
}

TEST(ManyPaths, EachPathTellsHowItStands) {
  TwoHosts hosts(2);
  hosts.move(kLarge);
  const auto states = [&](std::uint32_t node) {
    std::string text;
    std::uint64_t bytes = 0;
    for (const PathReport& path : hosts.cluster[node].loop().paths_st()) {
      EXPECT_EQ(path.peer, hosts.cluster[node].peer(1 - node).description);
      EXPECT_NE(path.local, path.remote);
      text += std::string(path.state) + " ";
      bytes += path.bytes_sent;
    }
    EXPECT_EQ(bytes, hosts.cluster[node].counters().bytes_sent);
    return text;
  };
  for (const PathReport& path : hosts.cluster[0].loop().paths_st()) {
    EXPECT_GE(path.bytes_sent, kLarge / 3);
    EXPECT_GT(path.round_trip, 0);
    EXPECT_EQ(path.datagram, 1472u);
    EXPECT_EQ(path.lost, 0u);
  }
  EXPECT_EQ(states(0), "live live ");
  EXPECT_EQ(states(1), "live live ");
  // Soon after it came to life, so it rests before it is tried again.
  hosts.kill(1, 2 * kSecond);
  hosts.move(kLarge);
  EXPECT_EQ(states(0), "live resting ");
  EXPECT_GT(hosts.cluster[0].loop().paths_st()[1].lost, 0u);
  hosts.wait(700 * kMillisecond);
  EXPECT_EQ(states(0), "live left ");
  hosts.wait(4 * kSecond);
  EXPECT_EQ(states(0), "live live ");
  hosts.pass(11 * kSecond);
  hosts.kill(1, 4 * kSecond);
  hosts.move(kLarge);
  EXPECT_EQ(states(0), "live left ");
}

TEST(ManyPaths, APathThatHasNeverAnsweredIsBeingProved) {
  TwoHosts hosts(2);
  hosts.kill(1, 10 * kSecond);
  hosts.move(1 << 20);
  const auto paths = hosts.cluster[0].loop().paths_st();
  ASSERT_EQ(paths.size(), hosts.cluster[0].session(1)->paths().count());
  EXPECT_STREQ(paths[0].state, "live");
  if (paths.size() > 1) {
    EXPECT_STREQ(paths[1].state, "proving");
  } else {  // the other side opens it
    EXPECT_STREQ(hosts.cluster[1].loop().paths_st()[1].state, "proving");
  }
}

}  // namespace
}  // namespace taco::harp
