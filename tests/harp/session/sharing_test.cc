// Sessions that share a link: with each other, with many paths of one, with senders that know only
// loss. What each gets of it, how long the queue before it becomes, and what is dropped there.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <vector>

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
  Senders(std::uint32_t hosts, const SimFaults& faults, const SimNicOptions& nic)
      : cluster(hosts, 1, faults, nic) {}

  SimCluster cluster;
  SimStreams streams{cluster, kMessage, kUnderWay};
};

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

TEST(Sharing, SixteenSendersFillALinkInEqualSharesWithAShortQueue) {
  constexpr std::uint32_t kSenders = 16;
  for (const Duration queue :
       {20 * kMillisecond, 5 * kMillisecond, 2 * kMillisecond, kMillisecond}) {
    Senders senders(kSenders + 1, slow_port(queue), {.max_datagrams = {1472}});
    for (std::uint32_t node = 1; node <= kSenders; ++node) senders.streams.add(node, 0);
    senders.streams.run(500 * kMillisecond);
    const std::uint64_t dropped = senders.cluster.network().counts().port_full;
    std::vector<Duration> waits;
    const std::vector<double> bytes = senders.streams.run(
        2 * kSecond, [&] { waits.push_back(senders.cluster.network().queue_before(0, 0)); });
    std::sort(waits.begin(), waits.end());
    const std::uint64_t drops = senders.cluster.network().counts().port_full - dropped;
    const double share = sum_of(bytes) / (2 * kPayload);
    const double wait = static_cast<double>(waits[waits.size() * 99 / 100]) / kMillisecond;
    const double lost = static_cast<double>(drops) / (2 * kGigabit / 1472);
    std::printf("queue of %2lld ms: %.3f of the link, Jain %.3f, wait p99 %.1f ms, %.3f dropped\n",
                static_cast<long long>(queue / kMillisecond), share, jain_index(bytes), wait, lost);
    EXPECT_GE(share, 0.9);
    EXPECT_GE(jain_index(bytes), 0.95);
    EXPECT_LE(wait, 15);
    EXPECT_LE(lost, queue == 20 * kMillisecond ? 0 : 0.1);
  }
}

TEST(Sharing, ASessionOfFourPathsTakesLittleMoreOfOneLinkThanASessionOfOne) {
  for (const Duration queue : {20 * kMillisecond, 5 * kMillisecond, 2 * kMillisecond}) {
    Senders senders(4, slow_uplink(queue), {.max_datagrams = {1472}, .ports = 4});
    for (const std::uint32_t node : {0u, 2u}) senders.cluster[node].set_paths(4);
    senders.streams.add(0, 2);
    senders.streams.add(1, 3);
    senders.streams.run(kSecond);
    const std::vector<double> bytes = senders.streams.run(3 * kSecond);
    ASSERT_EQ(senders.cluster[0].session(2)->paths().live(), 4u);
    ASSERT_EQ(senders.cluster[1].session(3)->paths().live(), 1u);
    const double many = bytes[0] / (3 * kPayload), one = bytes[1] / (3 * kPayload);
    std::printf("queue of %2lld ms: four paths %.3f, one %.3f\n",
                static_cast<long long>(queue / kMillisecond), many, one);
    EXPECT_GE(many + one, 0.9);
    EXPECT_GE(one, 0.3);
    EXPECT_GE(many, 0.3);
  }
}

// The share that is dropped of a sender with a fast cable of its own at a slow port whose queue
// holds half a millisecond: less than one super-packet.
double dropped(const CongestionOps& control) {
  Senders senders(2, slow_port(kMillisecond / 2), {.max_datagrams = {1472}});
  senders.cluster[1].set_congestion(&control);
  senders.streams.add(1, 0);
  senders.streams.run(500 * kMillisecond);
  const std::uint64_t before = senders.cluster.network().counts().port_full;
  const double share = sum_of(senders.streams.run(kSecond)) / kPayload;
  EXPECT_GE(share, 0.9) << control.name;
  const auto drops =
      static_cast<double>(senders.cluster.network().counts().port_full - before) * 1472 / kGigabit;
  std::printf("%s: %.3f of the link, %.4f dropped\n", control.name, share, drops);
  return drops;
}

TEST(Sharing, APacedSenderLosesLessWhereAQueueHoldsNoSuperPacket) {
  EXPECT_LT(dropped(kPacedSwift), 0.7 * dropped(kSwift));
}

// Cubic, like TCP's, gives way to loss alone and fills whatever queue there is.
TEST(Sharing, NeitherStarvesBesideASenderThatKnowsOnlyLoss) {
  for (const Duration queue : {20 * kMillisecond, 5 * kMillisecond}) {
    for (const bool cubic_first : {true, false}) {
      Senders senders(3, slow_port(queue), {.max_datagrams = {1472}});
      senders.cluster[2].set_congestion(&kCubic);
      senders.streams.add(1, 0, cubic_first ? 500 * kMillisecond : 0);
      senders.streams.add(2, 0, cubic_first ? 0 : 500 * kMillisecond);
      senders.streams.run(kSecond);
      const std::vector<double> bytes = senders.streams.run(4 * kSecond);
      const double swift = bytes[0] / (4 * kPayload), cubic = bytes[1] / (4 * kPayload);
      std::printf("queue of %2lld ms, %s first: swift %.3f, cubic %.3f\n",
                  static_cast<long long>(queue / kMillisecond), cubic_first ? "cubic" : "swift",
                  swift, cubic);
      EXPECT_GE(swift + cubic, 0.9);
      // A sender that comes to a full queue takes it for a part of the way.
      EXPECT_GE(swift, cubic_first ? 0.15 : 0.25);
      EXPECT_GE(cubic, 0.25);
    }
  }
}

}  // namespace
}  // namespace taco::harp
