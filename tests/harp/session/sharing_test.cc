// Sessions that share a link: with each other, with many paths of one, with senders that know only
// loss. What each gets of it, how long the queue before it becomes, and what is dropped there: over
// several seeds.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <tuple>
#include <vector>

#include "support/median.h"
#include "support/sim_cluster.h"
#include "support/sim_links.h"
#include "support/sim_streams.h"

namespace taco::harp {
namespace {

constexpr double kPayload = kGigabit * (1440.0 / 1472);  // of full packets
constexpr std::size_t kMessage = 256 * 1024;
constexpr std::size_t kUnderWay = 16;  // messages of one sender

std::size_t bytes_in(Duration time) {
  return static_cast<std::size_t>(kGigabit * static_cast<double>(time) / kSecond);
}

// Everybody has a fast cable; what leads to one host is slow, with a queue of so much time.
SimFaults slow_port(Duration queue) {
  SimFaults faults;
  faults.latency = 20 * kMicrosecond;
  faults.port_bytes_per_second = kGigabit;
  faults.port_queue = bytes_in(queue);
  faults.receive_buffer = 64 << 20;
  return faults;
}

// Two switches of two hosts each, with one slow cable between them.
SimFaults slow_uplink(Duration queue) {
  SimFaults faults = slow_port(queue);
  faults.port_bytes_per_second = 0;
  faults.hosts_a_switch = 2;
  faults.uplinks = 1;
  faults.uplink_bytes_per_second = kGigabit;
  faults.uplink_queue = bytes_in(queue);
  return faults;
}

struct Senders {
  Senders(std::uint32_t hosts, std::uint64_t seed, const SimFaults& faults,
          const SimNicOptions& nic)
      : cluster(hosts, seed, faults, nic) {}

  SimCluster cluster;
  SimStreams streams{cluster, kMessage, kUnderWay};
};

// The part of the link's capacity that these bytes are.
double share_of(double bytes, Duration time) {
  return bytes / (kPayload * static_cast<double>(time) / kSecond);
}

double sum_of(const std::vector<double>& shares) {
  double sum = 0;
  for (const double share : shares) sum += share;
  return sum;
}

double jain_index(const std::vector<double>& shares) {
  double squares = 0;
  for (const double share : shares) squares += share * share;
  const double sum = sum_of(shares);
  return sum * sum / (static_cast<double>(shares.size()) * squares);
}

std::string with_queue(const Duration& queue) {
  return std::to_string(queue / kMillisecond) + "_ms";
}

// By how long the queue before the link may become.
using SharingOfMany = ::testing::TestWithParam<Duration>;
INSTANTIATE_TEST_SUITE_P(Queue, SharingOfMany,
                         ::testing::Values(20 * kMillisecond, 5 * kMillisecond, 2 * kMillisecond,
                                           kMillisecond),
                         [](const auto& instance) { return with_queue(instance.param); });

TEST_P(SharingOfMany, SixteenSendersFillALinkInEqualSharesWithAShortQueue) {
  constexpr std::uint32_t kSenders = 16;
  constexpr Duration kMeasured = kSecond;
  const Duration queue = GetParam();
  std::vector<double> shares, indices, waits, losses;
  for (std::uint64_t seed = 1; seed <= kFewSeeds; ++seed) {
    Senders senders(kSenders + 1, seed, slow_port(queue), {.max_datagrams = {1472}});
    for (std::uint32_t node = 1; node <= kSenders; ++node) senders.streams.add(node, 0);
    senders.streams.run(500 * kMillisecond);
    const std::uint64_t before = senders.cluster.network().counts().port_full;
    std::vector<Duration> queues;
    const std::vector<double> bytes = senders.streams.run(
        kMeasured, [&] { queues.push_back(senders.cluster.network().queue_before(0, 0)); });
    std::sort(queues.begin(), queues.end());
    const std::uint64_t drops = senders.cluster.network().counts().port_full - before;
    shares.push_back(share_of(sum_of(bytes), kMeasured));
    indices.push_back(jain_index(bytes));
    waits.push_back(static_cast<double>(queues[queues.size() * 99 / 100]) / kMillisecond);
    losses.push_back(static_cast<double>(drops) * 1472 / static_cast<double>(bytes_in(kMeasured)));
  }
  std::printf("queue of %2lld ms: %.3f of the link, Jain %.3f, wait p99 %.1f ms, %.3f dropped\n",
              static_cast<long long>(queue / kMillisecond), median(shares), median(indices),
              median(waits), median(losses));
  EXPECT_GE(median(shares), 0.9);
  EXPECT_GE(median(indices), 0.95);
  EXPECT_LE(median(waits), 15);
  EXPECT_LE(median(losses), queue == 20 * kMillisecond ? 0 : 0.1);
}

using SharingOfPaths = ::testing::TestWithParam<Duration>;
INSTANTIATE_TEST_SUITE_P(Queue, SharingOfPaths,
                         ::testing::Values(20 * kMillisecond, 5 * kMillisecond, 2 * kMillisecond),
                         [](const auto& instance) { return with_queue(instance.param); });

TEST_P(SharingOfPaths, ASessionOfFourPathsTakesLittleMoreOfOneLinkThanASessionOfOne) {
  const Duration queue = GetParam();
  std::vector<double> many, one, both;
  for (std::uint64_t seed = 1; seed <= kFewSeeds; ++seed) {
    Senders senders(4, seed, slow_uplink(queue), {.max_datagrams = {1472}, .ports = 4});
    for (const std::uint32_t node : {0u, 2u}) senders.cluster[node].set_paths(4);
    senders.streams.add(0, 2);
    senders.streams.add(1, 3);
    senders.streams.run(kSecond);
    const std::vector<double> bytes = senders.streams.run(2 * kSecond);
    ASSERT_EQ(senders.cluster[0].session(2)->paths().live(), 4u);
    ASSERT_EQ(senders.cluster[1].session(3)->paths().live(), 1u);
    many.push_back(share_of(bytes[0], 2 * kSecond));
    one.push_back(share_of(bytes[1], 2 * kSecond));
    both.push_back(many.back() + one.back());
  }
  std::printf("queue of %2lld ms: four paths %.3f, one %.3f\n",
              static_cast<long long>(queue / kMillisecond), median(many), median(one));
  EXPECT_GE(median(both), 0.9);
  EXPECT_GE(median(one), 0.3);
  EXPECT_GE(median(many), 0.3);
}

// The share that is dropped of a sender with a fast cable of its own at a slow port whose queue
// holds half a millisecond: less than one super-packet. Nothing is random in such a network, so
// they differ by the length of the way.
double dropped(const CongestionOps& control) {
  constexpr Duration kMeasured = 400 * kMillisecond;
  std::vector<double> shares, losses;
  for (std::uint64_t seed = 1; seed <= kSeedsOfAMedian; ++seed) {
    SimFaults faults = slow_port(kMillisecond / 2);
    faults.latency = (10 + 2 * static_cast<Duration>(seed)) * kMicrosecond;
    Senders senders(2, seed, faults, {.max_datagrams = {1472}});
    senders.cluster[1].set_congestion(&control);
    senders.streams.add(1, 0);
    senders.streams.run(400 * kMillisecond);
    const std::uint64_t before = senders.cluster.network().counts().port_full;
    shares.push_back(share_of(sum_of(senders.streams.run(kMeasured)), kMeasured));
    const std::uint64_t drops = senders.cluster.network().counts().port_full - before;
    losses.push_back(static_cast<double>(drops) * 1472 / static_cast<double>(bytes_in(kMeasured)));
  }
  std::printf("%s: %.3f of the link, %.4f dropped\n", control.name, median(shares), median(losses));
  EXPECT_GE(median(shares), 0.9) << control.name;
  return median(losses);
}

TEST(Sharing, WhereAQueueHoldsNoSuperPacketLittleIsLostPacedOrNot) {
  for (const CongestionOps* control : {&kSwift, &kPacedSwift}) EXPECT_LE(dropped(*control), 0.06);
}

// Cubic, like TCP's, gives way to loss alone and fills whatever queue there is. By that queue, and
// by who is there first.
using SharingWithCubic = ::testing::TestWithParam<std::tuple<Duration, bool>>;
INSTANTIATE_TEST_SUITE_P(Queue, SharingWithCubic,
                         ::testing::Combine(::testing::Values(20 * kMillisecond, 5 * kMillisecond),
                                            ::testing::Bool()),
                         [](const auto& instance) {
                           return with_queue(std::get<0>(instance.param)) +
                                  (std::get<1>(instance.param) ? "_cubic_first" : "_swift_first");
                         });

TEST_P(SharingWithCubic, NeitherStarvesBesideASenderThatKnowsOnlyLoss) {
  const auto [queue, cubic_first] = GetParam();
  std::vector<double> swift, cubic, both;
  for (std::uint64_t seed = 1; seed <= kFewSeeds; ++seed) {
    Senders senders(3, seed, slow_port(queue), {.max_datagrams = {1472}});
    senders.cluster[2].set_congestion(&kCubic);
    senders.streams.add(1, 0, cubic_first ? 500 * kMillisecond : 0);
    senders.streams.add(2, 0, cubic_first ? 0 : 500 * kMillisecond);
    senders.streams.run(kSecond);
    const std::vector<double> bytes = senders.streams.run(2 * kSecond);
    swift.push_back(share_of(bytes[0], 2 * kSecond));
    cubic.push_back(share_of(bytes[1], 2 * kSecond));
    both.push_back(swift.back() + cubic.back());
  }
  std::printf("queue of %2lld ms, %s first: swift %.3f, cubic %.3f\n",
              static_cast<long long>(queue / kMillisecond), cubic_first ? "cubic" : "swift",
              median(swift), median(cubic));
  EXPECT_GE(median(both), 0.9);
  // A sender that comes to a full queue takes it for a part of the way.
  EXPECT_GE(median(swift), cubic_first ? 0.15 : 0.25);
  EXPECT_GE(median(cubic), 0.25);
}

}  // namespace
}  // namespace taco::harp
