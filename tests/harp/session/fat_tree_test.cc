// Switches that spread conversations over equal links by a hash of addresses and ports (ECMP): two
// conversations on one link halve each other while another link idles. Paths of several ports make
// that less likely, weighing them makes up for much of what is left, and few are moved to other
// ports until each pair of hosts has found its share.
#include <gtest/gtest.h>

#include <cstdio>

#include "support/sim_cluster.h"
#include "support/sim_streams.h"

namespace taco::harp {
namespace {

constexpr std::uint32_t kHosts = 8;  // at each of two switches, and as many uplinks
constexpr double kRate = 1.25e8;     // of a cable and of an uplink, bytes a second
constexpr std::size_t kMessage = 4 << 20;
constexpr std::size_t kUnderWay = 2;  // of each pair, so that the cable never waits for the next

SimFaults fat_tree() {
  SimFaults faults;
  faults.latency = 10 * kMicrosecond;
  faults.bytes_per_second = faults.port_bytes_per_second = faults.uplink_bytes_per_second = kRate;
  faults.port_queue = faults.uplink_queue = 512 * 1024;
  faults.hosts_a_switch = faults.uplinks = kHosts;
  faults.receive_buffer = 8 << 20;
  return faults;
}

// Every host of one switch sends to its counterpart at the other, message after message, one behind
// the other. What they carry together, as a share of what all uplinks could.
class Permutation {
 public:
  Permutation(std::uint32_t paths, std::uint64_t seed)
      : cluster_(2 * kHosts, seed, fat_tree(), {.max_datagrams = {1472}, .ports = 2 * paths}) {
    for (std::uint32_t node = 0; node < cluster_.size(); ++node) cluster_[node].set_paths(paths);
    for (std::uint32_t host = 0; host < kHosts; ++host) streams_.add(host, kHosts + host);
  }

  double share(Duration warm_up, Duration time) {
    streams_.run(warm_up);
    const std::uint64_t before = delivered();
    streams_.run(time);
    const double seconds = static_cast<double>(time) / kSecond;
    const double payload = 1440.0 / 1472 * kRate * kHosts * seconds;
    return static_cast<double>(delivered() - before) / payload;
  }
  // Over all hosts.
  std::uint64_t count(std::uint64_t ProtocolCounters::*counter) {
    std::uint64_t sum = 0;
    for (std::uint32_t node = 0; node < cluster_.size(); ++node) {
      sum += cluster_[node].counters().*counter;
    }
    return sum;
  }

 private:
  // Payload, once each.
  std::uint64_t delivered() {
    std::uint64_t bytes = 0;
    for (std::uint32_t host = 0; host < kHosts; ++host) {
      bytes += cluster_[kHosts + host].counters().bytes_received;
    }
    return bytes;
  }

  SimCluster cluster_;
  SimStreams streams_{cluster_, kMessage, kUnderWay};
};

// The share of uplinks that get at least one of so many conversations of each pair, thrown on them
// at random.
double collision_average(std::uint32_t paths) {
  double empty = 1;
  for (std::uint32_t i = 0; i < paths * kHosts; ++i) empty *= 1 - 1.0 / kHosts;
  return 1 - empty;
}

constexpr int kSeeds = 2;

double average(std::uint32_t paths) {
  double sum = 0;
  for (int seed = 1; seed <= kSeeds; ++seed) {
    Permutation permutation(paths, static_cast<std::uint64_t>(seed) * 1001);
    sum += permutation.share(300 * kMillisecond, 500 * kMillisecond);
    EXPECT_EQ(permutation.count(&ProtocolCounters::paths_left), 0u)
        << "a path that is merely slow was left";
  }
  return sum / kSeeds;
}

TEST(FatTree, SeveralPortsCarryWhatOneLosesToCollisions) {
  const double one = average(1), four = average(4), eight = average(8);
  std::printf("%u uplinks, %u pairs of hosts; shares of what all uplinks carry:\n", kHosts, kHosts);
  std::printf("  one port each, as chance has it  %.3f\n", collision_average(1));
  std::printf("  one port each, measured          %.3f\n", one);
  std::printf("  4 ports each (32)                %.3f\n", four);
  std::printf("  8 ports each (64)                %.3f\n", eight);
  EXPECT_NEAR(one, collision_average(1), 0.15);
  EXPECT_GT(four, one + 0.1);
  EXPECT_GE(four, 0.95);
  EXPECT_GE(eight, 0.95);
}

TEST(FatTree, TwoPortsAreMovedUntilNoneLosesToCollisions) {
  double at_first = 0, at_last = 0;
  std::printf("2 ports each (16); as chance has it %.3f\n", collision_average(2));
  for (int i = 1; i <= kSeeds; ++i) {
    const std::uint64_t seed = static_cast<std::uint64_t>(i) * 1001;
    Permutation permutation(2, seed);
    const double first = permutation.share(50 * kMillisecond, 100 * kMillisecond);
    const double last = permutation.share(1400 * kMillisecond, 500 * kMillisecond);
    // Both ends of a path count its moves.
    std::printf(
        "  seed %llu: %.3f at first, %.3f after %llu moves\n",
        static_cast<unsigned long long>(seed), first, last,
        static_cast<unsigned long long>(permutation.count(&ProtocolCounters::paths_moved)) / 2);
    EXPECT_EQ(permutation.count(&ProtocolCounters::paths_left), 0u);
    at_first += first / kSeeds;
    at_last += last / kSeeds;
  }
  std::printf("  average %.3f at first, %.3f at last\n", at_first, at_last);
  EXPECT_LT(at_first, 0.92);
  EXPECT_GE(at_last, 0.95);
}

}  // namespace
}  // namespace taco::harp
