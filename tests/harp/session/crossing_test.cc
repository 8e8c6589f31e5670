// Traffic in both directions, and among several hosts: acknowledgements wait behind what their
// sender sends itself, and every host shares its links among several others.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <deque>
#include <vector>

#include "support/median.h"
#include "support/sim_cluster.h"
#include "support/sim_links.h"
#include "support/sim_transfer.h"

namespace taco::harp {
namespace {

constexpr std::size_t kBlock = 10 << 20, kMessage = 1 << 20;

// Every host has a block for every other one, and goes through them by distance as the collective
// operation does: a few messages at a time, and receives a few at a time.
class AllToAll {
 public:
  explicit AllToAll(std::uint32_t links, std::uint64_t seed, const SimFaults& faults = gigabit())
      : cluster_(4, seed, faults) {
    for (std::uint32_t host = 0; host < cluster_.size(); ++host) cluster_[host].set_paths(links);
  }
  // Virtual seconds.
  double run() {
    for (std::uint32_t distance = 1; distance < cluster_.size(); ++distance) {
      for (std::size_t at = 0; at < kBlock; at += kMessage) add(distance);
    }
    return move(2);
  }
  // Every host sends to the next one alone, much at a time: windows grow.
  double ring(std::size_t bytes) {
    for (std::size_t at = 0; at < bytes; at += kMessage) add(1);
    return move(32);
  }

 private:
  double move(std::size_t open) {
    open_ = open;
    const Time start = cluster_.now();
    post();
    const auto all = [&] {
      return std::all_of(transfers_.begin(), transfers_.end(),
                         [](const Transfer& transfer) { return transfer.done(); });
    };
    EXPECT_TRUE(cluster_.run(start + 20 * kSecond, all, [&] { post(); }));
    for (const Transfer& transfer : transfers_) transfer.check();
    hosts_.assign(cluster_.size(), {});
    transfers_.clear();
    return static_cast<double>(cluster_.now() - start) / kSecond;
  }

  struct Queue {
    std::vector<std::pair<Transfer*, std::uint32_t>> all;
    std::size_t next = 0, done = 0;  // all before it have ended
  };
  struct Host {
    Queue sends, receives;
  };
  void add(std::uint32_t distance) {
    for (std::uint32_t host = 0; host < cluster_.size(); ++host) {
      const std::uint32_t to = (host + distance) % cluster_.size();
      Transfer& transfer = transfers_.emplace_back(++tag_, kMessage);
      hosts_[host].sends.all.emplace_back(&transfer, to);
      hosts_[to].receives.all.emplace_back(&transfer, host);
    }
  }
  void post() {
    for (std::uint32_t host = 0; host < cluster_.size(); ++host) {
      Queue &sends = hosts_[host].sends, &receives = hosts_[host].receives;
      while (may_open(receives, &Transfer::received)) {
        const auto [transfer, from] = receives.all[receives.next++];
        cluster_[host].recv(from, transfer->recv);
      }
      while (may_open(sends, &Transfer::sent)) {
        const auto [transfer, to] = sends.all[sends.next++];
        cluster_[host].send(to, transfer->send);
      }
    }
  }
  bool may_open(Queue& queue, Transfer::Outcome Transfer::*outcome) const {
    const auto has_ended = [&](std::size_t i) { return (queue.all[i].first->*outcome).calls > 0; };
    while (queue.done < queue.next && has_ended(queue.done)) ++queue.done;
    std::size_t open = 0;
    for (std::size_t i = queue.done; i < queue.next; ++i) open += has_ended(i) ? 0 : 1;
    return open < open_ && queue.next < queue.all.size();
  }

  SimCluster cluster_;
  std::size_t open_ = 0;  // messages of a host each way, at most
  std::vector<Host> hosts_ = std::vector<Host>(cluster_.size());
  std::deque<Transfer> transfers_;
  std::uint64_t tag_ = 0;
};

TEST(Crossing, AnAllToAllOverTwoLinksTakesMuchLessTime) {
  constexpr double kLimit = 3.0 * kBlock * 1472 / 1440 / kGigabit;
  std::vector<double> times[2];  // over one link, and over two
  for (std::uint64_t seed = 1; seed <= kSeedsOfAMedian; ++seed) {
    for (const std::uint32_t links : {1u, 2u}) {
      AllToAll hosts(links, seed);
      hosts.run();
      for (int i = 0; i < 2; ++i) times[links - 1].push_back(hosts.run());
    }
  }
  const double one = median(times[0]), two = median(times[1]);
  std::printf("one link %.1f ms (%.3f of the limit), two %.1f ms (%.3f): %.2fx\n", one * 1e3,
              one / kLimit, two * 1e3, 2 * two / kLimit, one / two);
  EXPECT_LE(one, 1.03 * kLimit);
  EXPECT_GE(one / two, 1.65);
}

// Large windows, as operations leave them that always have more to send, are no burden for those
// that have little: it does not all leave by what happens to look soonest.
TEST(Crossing, WhatSendsLittleAtATimeUsesBothLinksAfterWhatSendsMuch) {
  SimFaults faults = gigabit();
  faults.receive_buffer = 32 << 20;
  std::vector<double> rings[2], all_to_alls[2];
  for (std::uint64_t seed = 1; seed <= kSeedsOfAMedian; ++seed) {
    for (const std::uint32_t links : {1u, 2u}) {
      AllToAll hosts(links, seed, faults);
      hosts.run();
      rings[links - 1].push_back(hosts.ring(60 << 20));
      all_to_alls[links - 1].push_back(hosts.run());
    }
  }
  const double ring = median(rings[0]) / median(rings[1]);
  const double all_to_all = median(all_to_alls[0]) / median(all_to_alls[1]);
  std::printf("two links: ring %.2fx, all_to_all after it %.2fx\n", ring, all_to_all);
  EXPECT_GE(ring, 1.6);
  EXPECT_GE(all_to_all, 1.7);
}

// The acknowledgements of what comes wait behind that, for as long as it keeps a queue.
TEST(Crossing, WhoeverSendsAFullStreamIsStillSentOne) {
  SimCluster hosts(3, 1, gigabit());
  Transfer out(1, 100 << 20), in(2, 50 << 20);
  hosts[2].recv(1, out.recv);
  hosts[1].send(2, out.send);
  hosts[1].recv(0, in.recv);
  hosts[0].send(1, in.send);
  ASSERT_TRUE(hosts.run(20 * kSecond, [&] { return in.done(); }));
  const double seconds = static_cast<double>(hosts.now()) / kSecond;
  const double limit = (50 << 20) * 1472.0 / 1440 / kGigabit;
  std::printf("%.1f ms, limit %.1f ms\n", seconds * 1e3, limit * 1e3);
  EXPECT_LE(seconds, 1.12 * limit);
  in.check();
  hosts.end();
}

}  // namespace
}  // namespace taco::harp
