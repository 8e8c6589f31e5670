// Sessions in which a path has sent 2^32 packets and more: packets carry the lower half of their
// number only.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/sim_cluster.h"
#include "support/sim_transfer.h"
#include "support/sim_wire.h"

namespace taco::harp {
namespace {

constexpr std::uint64_t kTurn = std::uint64_t{1} << 32;

class LongSession : public testing::TestWithParam<Security> {
 protected:
  LongSession() {
    for (const std::uint32_t node : {0u, 1u}) cluster[node].set_security(GetParam());
  }
  void deliver(std::uint32_t from, std::uint32_t to, std::size_t bytes) {
    Transfer transfer(++tag_, bytes);
    transfer.reduce();
    cluster[to].recv(from, transfer.recv);
    cluster[from].send(to, transfer.send);
    ASSERT_TRUE(cluster.run(cluster.now() + 20 * kSecond, [&] { return transfer.done(); })) << tag_;
    transfer.check();
  }
  void exchange(std::size_t bytes) {
    for (const std::size_t each : {std::size_t{0}, std::size_t{100}, std::size_t{1'500}, bytes}) {
      deliver(0, 1, each);
      deliver(1, 0, each);
    }
  }
  Path& path_of(std::uint32_t node) { return **cluster[node].session(1 - node)->paths().begin(); }
  // The next packet will have that number, or nearly. A receiver takes numbers for the ones next to
  // those it knows, so it goes there by steps.
  void go_to(std::uint32_t node, std::uint64_t number) {
    while (path_of(node).last_number() + 1 < number) {
      const std::uint64_t left = number - path_of(node).last_number() - 1;
      path_of(node).use_up(static_cast<std::uint32_t>(std::min(left, kTurn / 2 - 1'000)));
      cluster[node].session(1 - node)->probe();
      deliver(node, 1 - node, 100);
    }
  }
  SimCluster cluster{2, 1, {}};

 private:
  std::uint64_t tag_ = 0;
};
INSTANTIATE_TEST_SUITE_P(Levels, LongSession,
                         testing::Values(Security::kNone, Security::kAuth, Security::kEncrypt),
                         [](const auto& level) { return std::string(name_of(level.param)); });

TEST_P(LongSession, GoesOnAcrossAllNumbersOfAHeader) {
  exchange(10'000);
  for (const std::uint64_t turn : {kTurn, 2 * kTurn}) {
    for (const std::uint32_t node : {0u, 1u}) go_to(node, turn - 100);
    ASSERT_LT(path_of(0).last_number(), turn - 1);
    exchange(500'000);
    for (const std::uint32_t node : {0u, 1u}) EXPECT_GT(path_of(node).last_number(), turn + 100);
  }
}

// A packet recorded one turn of the numbers ago has, by its header, the number that comes next.
TEST_P(LongSession, NoRecordingActsAgainATurnLater) {
  if (GetParam() == Security::kNone) GTEST_SKIP() << "nothing is promised at this level";
  SimObserver observer(cluster);
  exchange(2'000'000);
  const std::uint64_t recorded = path_of(0).last_number();
  for (const std::uint32_t node : {0u, 1u}) go_to(node, kTurn - 100);
  exchange(300'000);
  cluster.run(cluster.now() + kSecond, [] { return false; });
  const std::uint64_t newest = path_of(0).last_number() - kTurn;
  ASSERT_GT(recorded, newest + 500) << "nothing recorded is ahead, so nothing is tested";
  const ProtocolCounters& counters = cluster[1].counters();
  const std::uint64_t acted = counters.packets_received - counters.duplicates;
  const Time heard = cluster[1].session(0)->last_heard();
  const std::vector<SimObserver::Seen> old = observer.seen;
  for (const SimObserver::Seen& one : old) {
    if (one.from == 0 && !is_type(one.bytes, wire::Type::kHello)) observer.send(0, 1, one.bytes);
  }
  EXPECT_EQ(counters.packets_received - counters.duplicates, acted);
  EXPECT_EQ(cluster[1].session(0)->last_heard(), heard);
  EXPECT_EQ(path_of(1).largest_received(), path_of(0).last_number());
  exchange(300'000);
}

}  // namespace
}  // namespace taco::harp
