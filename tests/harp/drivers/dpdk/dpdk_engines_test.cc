// Processes of two engines each over DPDK: each engine has a memif of its own, beside the one that
// TACO_HARP_DPDK names. Skipped with the reason where DPDK is missing.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "support/dpdk_world.h"
#include "support/engine_pair.h"

namespace taco::harp {
namespace {

using ::taco::testing::EnginePair;
using ::taco::testing::Fellowship;
using ::taco::testing::kDpdkDeadline;
using ::taco::testing::memif;
using ::taco::testing::over_dpdk;
using ::taco::testing::run_processes;
using ::taco::testing::TemporaryDirectory;

StackOptions two_engines(const TemporaryDirectory& folder, int rank) {
  StackOptions options =
      over_dpdk(memif(folder, rank, 0, "10.5.0." + std::to_string(rank + 1) + "/24"));
  options.engines = 2;
  return options;
}

TEST(DpdkEngines, CarryMessagesSideBySideByMemifsOfTheirOwn) {
  DPDK_OR_SKIP();
  const TemporaryDirectory folder;
  const auto statuses = run_processes({2, kDpdkDeadline, {}}, [&](Fellowship& fellowship) {
    EnginePair pair(fellowship, two_engines(folder, fellowship.rank()));
    for (const auto& stack : pair.stacks) {
      EXPECT_EQ(stack->transport_summary(), "dpdk(net_memif0)");
    }
    for (std::uint64_t tag = 0; tag < 20; ++tag) pair.exchange(tag, tag * 100'000 + 8);
    for (const auto& stack : pair.stacks) EXPECT_GT(stack->stats().packets_received, 0u);
    fellowship.barrier();
  });
  EXPECT_EQ(statuses, (std::vector<int>{0, 0}));
}

// The rings are taken away while both engines write into them.
TEST(DpdkEngines, BothNoticeADeathWhileMessagesAreUnderWay) {
  DPDK_OR_SKIP();
  const TemporaryDirectory folder;
  const auto statuses = run_processes({2, kDpdkDeadline, {}}, [&](Fellowship& fellowship) {
    StackOptions options = two_engines(folder, fellowship.rank());
    options.peer_timeout = 5 * kSecond;
    EnginePair pair(fellowship, options);
    pair.exchange(1, 100'000);
    const bool sends = fellowship.rank() == 0;
    std::array<std::vector<std::byte>, 2> messages;
    std::vector<std::unique_ptr<Exchange>> under_way;
    std::uint64_t in = 0;
    for (int i = 0; i < 2; ++i) {
      messages[i].resize(50'000'000);
      under_way.push_back(std::make_unique<Exchange>(*pair.stacks[i]));
      Exchange& own = *under_way.back();
      if (sends) {
        own.send(pair.peers[i], {1, 2}, messages[i].data(), messages[i].size());
        own.recv(pair.peers[i], {1, 3}, Sink::place(&in), sizeof in);  // which nobody sends
      } else {
        own.recv(pair.peers[i], {1, 2}, Sink::place(messages[i].data()), messages[i].size());
      }
      own.start();
    }
    fellowship.barrier();
    if (!sends) raise(SIGKILL);
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(under_way[i]->finish(30 * kSecond).code(), Code::kPeerLost) << i;
      EXPECT_EQ(pair.notes[i].lost, 1) << i;
    }
  });
  EXPECT_EQ(statuses[0], 0);
  EXPECT_EQ(WTERMSIG(statuses[1]), SIGKILL);
}

}  // namespace
}  // namespace taco::harp
