// Hosts whose processes have two engines each, over the queues of an interface: with xdp at both
// ends, or with the kernel's UDP at the other. Needs root and a kernel with AF_XDP; skipped with
// the reason elsewhere.
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>

#include <string>
#include <vector>

#include "harp/drivers/xdp/xdp_here.h"
#include "support/engine_pair.h"
#include "support/network.h"

namespace taco::harp {
namespace {

using ::taco::testing::EnginePair;
using ::taco::testing::Fellowship;
using ::taco::testing::hold;
using ::taco::testing::run_processes;

StackOptions two_engines(const char* driver, const char* interface) {
  StackOptions options;
  options.transport = StackOptions::Force::kUdp;
  options.interfaces = {interface};
  options.driver = driver;
  options.engines = 2;
  return options;
}

// The driver of the second host; the first has xdp.
class XdpEngines : public ::testing::TestWithParam<const char*> {
 protected:
  static StackOptions options(int rank) {
    return rank == 0 ? two_engines("xdp", "q0") : two_engines(GetParam(), "q1");
  }
};
INSTANTIATE_TEST_SUITE_P(Beside, XdpEngines, ::testing::Values("xdp", "udp"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(XdpEngines, CarryMessagesSideBySideByQueuesOfTheirOwn) {
  XDP_OR_SKIP();
  HOSTS_OR_SKIP(2);
  ASSERT_TRUE(network.lay_cable(2));
  const auto statuses =
      run_processes({2, 60 * kSecond, {network.namespaces()[0], network.namespaces()[1]}},
                    [](Fellowship& fellowship) {
                      EnginePair pair(fellowship, options(fellowship.rank()));
                      const std::string driver = fellowship.rank() == 0 ? "xdp" : GetParam();
                      for (const auto& stack : pair.stacks) {
                        EXPECT_EQ(stack->transport_summary(),
                                  driver + "(q" + std::to_string(fellowship.rank()) + ")");
                      }
                      for (std::uint64_t tag = 0; tag < 20; ++tag)
                        pair.exchange(tag, tag * 40'000 + 8);
                      fellowship.barrier();
                    });
  EXPECT_EQ(statuses, (std::vector<int>{0, 0}));
}

// Twice: the second process finds its queues free again.
TEST_P(XdpEngines, BothNoticeADeathAndOthersTakeTheirPlace) {
  XDP_OR_SKIP();
  HOSTS_OR_SKIP(2);
  ASSERT_TRUE(network.lay_cable(2));
  for (int round = 0; round < 2; ++round) {
    const auto statuses =
        run_processes({2, 60 * kSecond, {network.namespaces()[0], network.namespaces()[1]}},
                      [](Fellowship& fellowship) {
                        StackOptions wanted = options(fellowship.rank());
                        wanted.peer_timeout = 5 * kSecond;
                        EnginePair pair(fellowship, wanted);
                        pair.exchange(1, 100'000);
                        fellowship.barrier();
                        if (fellowship.rank() == 1) raise(SIGKILL);
                        std::uint64_t in = 0;
                        for (int i = 0; i < 2; ++i) {
                          Exchange never(*pair.stacks[i]);
                          never.recv(pair.peers[i], {1, 2}, Sink::place(&in), sizeof in);
                          EXPECT_EQ(never.run(30 * kSecond).code(), Code::kPeerLost) << i;
                        }
                      });
    EXPECT_EQ(statuses[0], 0);
    EXPECT_EQ(WTERMSIG(statuses[1]), SIGKILL);
  }
}

// Two ranks of two engines each, on the four queues of one interface, with one like them elsewhere.
TEST(XdpEnginesOfRanks, ShareAnInterface) {
  XDP_OR_SKIP();
  HOSTS_OR_SKIP(2);
  ASSERT_TRUE(network.lay_cable(4));
  const std::string here = network.namespaces()[0], there = network.namespaces()[1];
  const auto statuses =
      run_processes({4, 60 * kSecond, {here, there, here, there}}, [](Fellowship& fellowship) {
        const int host = fellowship.rank() % 2;
        setenv("LOCAL_RANK", fellowship.rank() < 2 ? "0" : "1", 1);
        setenv("LOCAL_WORLD_SIZE", "2", 1);
        EnginePair pair(fellowship, two_engines("xdp", host == 0 ? "q0" : "q1"),
                        fellowship.rank() ^ 1);
        for (std::uint64_t tag = 0; tag < 5; ++tag) pair.exchange(tag, tag * 40'000 + 8);
        fellowship.barrier();
      });
  EXPECT_EQ(statuses, (std::vector<int>{0, 0, 0, 0}));
}

// The cable has a queue for one rank's engines alone.
TEST(XdpEnginesOfRanks, AreToldHowManyQueuesTheyNeed) {
  XDP_OR_SKIP();
  HOSTS_OR_SKIP(2);
  ASSERT_TRUE(network.lay_cable(2));
  const std::string here = network.namespaces()[0];
  const auto statuses = run_processes({2, 60 * kSecond, {here, here}}, [](Fellowship& fellowship) {
    const std::string rank = std::to_string(fellowship.rank());
    setenv("LOCAL_RANK", rank.c_str(), 1);
    setenv("LOCAL_WORLD_SIZE", "2", 1);
    StackOptions wanted = two_engines("xdp", "q0");
    const auto refused = [&](const std::string& group, const std::string& part) {
      const Status status = hold_stack(wanted, {group, 2, fellowship.rank()}).status();
      EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
    };
    if (fellowship.rank() == 0) {
      wanted.engines = 3;
      refused("1",
              "xdp on q0: q0 has 2 queues for 2 ranks of 3 engines, and each engine needs one: "
              "more queues (`ethtool -L q0 combined 6`");
      wanted.engines = 2;
      const HeldStack first = hold(wanted, "0"), second = hold(wanted, "1");
      fellowship.barrier();
      fellowship.barrier();
      drop_stack(first.stack, {"0", 2, 0});
      drop_stack(second.stack, {"1", 2, 0});
      return;
    }
    fellowship.barrier();
    refused("1",
            "queue 1 belongs to another process or engine, and a queue has one owner: q0 has 2 "
            "queues for 2 ranks of 2 engines, and each engine needs one: more queues (`ethtool "
            "-L q0 combined 4`");
    fellowship.barrier();
  });
  EXPECT_EQ(statuses, (std::vector<int>{0, 0}));
}

}  // namespace
}  // namespace taco::harp
