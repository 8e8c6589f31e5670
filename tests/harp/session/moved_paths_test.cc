// Several ports at each end of one pair of addresses: paths that cross one link by chance part, and
// where that is no help they stay where they are.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <deque>
#include <vector>

#include "support/median.h"
#include "support/sim_cluster.h"
#include "support/sim_streams.h"
#include "support/sim_transfer.h"

namespace taco::harp {
namespace {

constexpr std::uint32_t kPaths = 2, kPorts = 4;
constexpr double kLink = 1.25e7;  // bytes a second
constexpr std::size_t kMessage = 256 * 1024;

SimFaults slow() {
  SimFaults faults;
  faults.bytes_per_second = kLink;
  faults.receive_buffer = 4 << 20;
  return faults;
}

// Each host has a switch of its own, and between the switches are links that are slower than the
// hosts' cables. Addresses and ports choose one.
SimFaults joined_by(std::uint32_t uplinks) {
  SimFaults faults = slow();
  faults.bytes_per_second = 2 * uplinks * kLink;
  faults.hosts_a_switch = 1;
  faults.uplinks = uplinks;
  faults.uplink_bytes_per_second = kLink;
  faults.uplink_queue = 128 * 1024;
  return faults;
}

struct TwoHosts {
  TwoHosts(std::uint64_t seed, const SimFaults& faults, int streaming = 1)
      : cluster(2, seed, faults, {.max_datagrams = {1472}, .ports = kPorts}) {
    for (std::uint32_t node : {0u, 1u}) cluster[node].set_paths(kPaths);
    for (int i = 0; i < streaming; ++i) streams.add(0, 1);
  }
  // Payload of one link that came meanwhile.
  double links(Duration time) {
    const std::uint64_t before = cluster[1].counters().bytes_received;
    streams.run(time);
    const auto bytes = static_cast<double>(cluster[1].counters().bytes_received - before);
    return bytes / (1440.0 / 1472 * kLink * static_cast<double>(time) / kSecond);
  }
  std::uint64_t moves() const { return sender().counters().paths_moved; }
  std::uint64_t left() const {
    return cluster[0].counters().paths_left + cluster[1].counters().paths_left;
  }
  bool sender_leads() const { return sender().incarnation() < cluster[1].incarnation(); }
  SimProcess& sender() const { return cluster[0]; }

  mutable SimCluster cluster;
  SimStreams streams{cluster, kMessage, 4};
};

// Chance decides which seeds these are, and whether the sender leads.
TEST(MovedPaths, TwoThatCrossOneLinkPart) {
  int led = 0;
  std::vector<double> last;
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    TwoHosts hosts(seed, joined_by(4));
    const double before = hosts.links(100 * kMillisecond);
    if (before > 1.2) continue;
    led += hosts.sender_leads() ? 1 : 0;
    hosts.links(1900 * kMillisecond);
    const double after = hosts.links(kSecond);
    std::printf("seed %llu: %.2f links, then %.2f, %llu moves\n",
                static_cast<unsigned long long>(seed), before, after,
                static_cast<unsigned long long>(hosts.moves()));
    last.push_back(after);
    EXPECT_EQ(hosts.left(), 0u) << "a path that is merely slow was left";
  }
  const std::size_t seeds = last.size();
  ASSERT_TRUE(led > 0 && static_cast<std::size_t>(led) < seeds)
      << "of " << seeds << " seeds the sender leads in " << led;
  EXPECT_GE(median(last), 1.8);
  const auto apart = std::ranges::count_if(last, [](double links) { return links >= 1.8; });
  EXPECT_GE(static_cast<std::size_t>(apart), seeds - seeds / 4);
}

// Moves that would make them cross one link are taken back.
TEST(MovedPaths, TwoOfDifferentLinksStayApart) {
  std::uint64_t moves = 0;
  std::vector<double> last;
  for (std::uint64_t seed = 1; last.size() < kSeedsOfAMedian; ++seed) {
    TwoHosts hosts(seed, joined_by(4));
    if (hosts.links(100 * kMillisecond) < 1.8) continue;
    hosts.links(1900 * kMillisecond);
    moves += hosts.moves();
    last.push_back(hosts.links(2 * kSecond));
  }
  EXPECT_GE(moves, 1u) << "nobody has tried";
  EXPECT_GE(median(last), 1.8);
}

TEST(MovedPaths, WhereAllShareOneLinkTheyStayAfterAFewMoves) {
  TwoHosts hosts(1, slow());
  hosts.links(40 * kSecond);
  const std::uint64_t moves = hosts.moves();
  EXPECT_LE(moves, Repathing::kMaxInVain);
  EXPECT_GE(moves, 1u) << "nobody has tried";
  EXPECT_GE(hosts.links(10 * kSecond), 0.98);
  EXPECT_EQ(hosts.moves(), moves);
}

// From the ports to spare nothing arrives.
TEST(MovedPaths, WhereNothingArrivesFromOtherPortsThePathStaysWhereItIs) {
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    TwoHosts hosts(seed, slow());
    for (std::uint32_t node : {0u, 1u}) {
      for (std::uint32_t port = kPaths; port < kPorts; ++port) {
        hosts.cluster.network().kill_link(node, 1 - node, kNever, 0, port);
      }
    }
    EXPECT_GE(hosts.links(8 * kSecond), 0.95);
    for (std::uint32_t node : {0u, 1u}) {
      const PathSet& paths = hosts.cluster[node].session(1 - node)->paths();
      EXPECT_EQ(paths.live(), kPaths);
      for (const auto& path : paths) EXPECT_LT(path->pair().local, kPaths);
    }
    EXPECT_EQ(hosts.left(), 0u);
  }
}

// Little is sent, and by whichever path is free: neither window keeps anything waiting.
TEST(MovedPaths, WhereLittleIsSentNoneIsMoved) {
  TwoHosts hosts(1, joined_by(4), 0);
  std::deque<Transfer> transfers;
  for (std::uint64_t tag = 1; tag <= 500; ++tag) {
    Transfer& one = transfers.emplace_back(tag, 10'000);
    hosts.cluster[1].recv(0, one.recv);
    hosts.cluster[0].send(1, one.send);
    const Time next = hosts.cluster.now() + 10 * kMillisecond;
    hosts.cluster.wake_at(next);
    hosts.cluster.run(next, [&] { return hosts.cluster.now() >= next; });
    EXPECT_TRUE(one.done());
  }
  EXPECT_EQ(hosts.moves(), 0u);
  hosts.cluster.end();
}

}  // namespace
}  // namespace taco::harp
