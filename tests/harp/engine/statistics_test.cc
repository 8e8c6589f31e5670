// The counters that an engine shows to other processes, in virtual time: which, and when.
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <utility>

#include "harp/engine/stat_publisher.h"
#include "support/sim_cluster.h"
#include "support/sim_transfer.h"

namespace taco::harp {
namespace {

using statistics::Counter;
using statistics::State;

void send_to_other(SimCluster& cluster, std::uint64_t tag, std::size_t bytes,
                   const std::function<void()>& each_step = nullptr) {
  Transfer transfer(tag, bytes);
  cluster[1].recv(0, transfer.recv);
  cluster[0].send(1, transfer.send);
  ASSERT_TRUE(cluster.run(
      cluster.now() + 30 * kSecond, [&] { return transfer.done(); }, each_step));
  transfer.check();
}

State described(SimProcess& process) {
  State state;
  process.loop().describe_st(state);
  return state;
}

TEST(EngineStatistics, tell_of_each_path_and_of_every_drop_by_its_cause) {
  SimFaults faults;
  faults.loss = faults.corruption = faults.duplication = 0.05;
  SimCluster cluster(2, 3, faults);
  for (std::uint64_t tag = 1; tag <= 10; ++tag) send_to_other(cluster, tag, 300'000);
  const State sender = described(cluster[0]), receiver = described(cluster[1]);
  const ProtocolCounters& sent = cluster[0].counters();
  const ProtocolCounters& received = cluster[1].counters();
  EXPECT_EQ(sender.totals[Counter::kRetransmits], sent.retransmits);
  EXPECT_GT(sent.retransmits, 0u);
  EXPECT_EQ(receiver.totals[Counter::kBytesReceived], received.bytes_received);
  EXPECT_EQ(receiver.totals[Counter::kDroppedChecksum], received.checksum_failures);
  EXPECT_GT(received.checksum_failures, 0u);
  EXPECT_EQ(receiver.totals[Counter::kDroppedDuplicate], received.duplicates);
  EXPECT_GT(received.duplicates, 0u);
  ASSERT_EQ(sender.rows.size(), 1u);
  const statistics::Row& path = sender.rows[0];
  EXPECT_EQ(path.reach, statistics::Reach::kNetwork);
  EXPECT_EQ(path.standing, statistics::Standing::kLive);
  EXPECT_EQ(path.bytes_sent, sent.bytes_sent);
  EXPECT_GT(path.packets_lost, 0u);
  EXPECT_GT(path.round_trip, static_cast<std::uint64_t>(faults.latency));
  EXPECT_EQ(sender.totals[Counter::kSessions], 1u);
  EXPECT_EQ(sender.totals[Counter::kPaths], 1u);
}

TEST(EngineStatistics, show_a_peer_that_has_ended_as_such) {
  SimCluster cluster(2, 1, {});
  send_to_other(cluster, 1, 1000);
  cluster[1].die();
  Transfer waiting(2, 100);
  cluster[0].recv(1, waiting.recv);
  ASSERT_TRUE(
      cluster.run(cluster.now() + 60 * kSecond, [&] { return waiting.received.calls > 0; }));
  ASSERT_EQ(described(cluster[0]).rows.size(), 1u);
  EXPECT_EQ(described(cluster[0]).rows[0].standing, statistics::Standing::kEnded);
}

// A page of the first process's, and at which times it has been written.
struct Published {
  explicit Published(SimCluster& cluster) {
    auto page = statistics::Page::create({});
    EXPECT_TRUE(page.ok()) << page.status().message();
    auto opened = statistics::View::open(page.value()->fd());
    view = std::make_unique<statistics::View>(std::move(opened).value());
    publisher = std::make_unique<StatPublisher>(cluster[0].loop(), nullptr, nullptr,
                                                std::move(page).value());
  }
  void on_step() {
    publisher->on_turn_st();
    times.insert(now().time);
  }
  statistics::Totals now() const { return view->read().value().totals; }

  std::unique_ptr<statistics::View> view;
  std::unique_ptr<StatPublisher> publisher;
  std::set<std::uint64_t> times;
};

TEST(StatPublisher, writes_at_most_every_tenth_of_a_second_and_never_for_an_idle_engine) {
  SimCluster cluster(2, 1, {});
  Published published(cluster);
  const auto step = [&] { published.on_step(); };
  const auto rest = [&](Duration time) {
    cluster.run(
        cluster.now() + time, [] { return false; }, step);
  };
  const Time start = cluster.now();
  for (std::uint64_t tag = 1; cluster.now() - start < kSecond; ++tag) {
    send_to_other(cluster, tag, 1'000'000, step);
  }
  EXPECT_GT(published.times.size(), 3u);
  EXPECT_LE(published.times.size(), 12u);
  rest(kSecond);
  EXPECT_EQ(published.now()[Counter::kBytesSent], cluster[0].counters().bytes_sent);

  published.times.clear();
  const std::uint64_t turns = cluster[0].turns();
  rest(100 * kSecond);
  EXPECT_LE(published.times.size(), 1u) << "it wrote although nothing had happened";
  EXPECT_LT(cluster[0].turns() - turns, 20u) << "it kept the engine awake";
  send_to_other(cluster, 1'000'000, 5000, step);
  rest(kSecond);
  EXPECT_EQ(published.now()[Counter::kBytesSent], cluster[0].counters().bytes_sent);
}

}  // namespace
}  // namespace taco::harp
