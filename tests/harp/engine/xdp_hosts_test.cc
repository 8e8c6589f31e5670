// Stacks on two hosts of which one or both have the xdp driver. Needs root and a kernel with
// AF_XDP; skipped with the reason elsewhere.
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <tuple>
#include <vector>

#include "harp/drivers/xdp/xdp_here.h"
#include "harp/engine/stack.h"
#include "harp/tools/exchange.h"
#include "support/network.h"
#include "support/processes.h"
#include "support/stack_world.h"

namespace taco::harp {
namespace {

using ::taco::testing::Fellowship;
using ::taco::testing::Network;
using ::taco::testing::pattern;
using ::taco::testing::run_processes;
using ::taco::testing::StackWorld;

using Drivers = std::pair<const char*, const char*>;  // by host
constexpr Drivers kPairs[] = {{"xdp", "xdp"}, {"xdp", "udp"}, {"udp", "xdp"}};

class XdpHostsTest : public ::testing::TestWithParam<Drivers> {
 protected:
  StackOptions options(const Network& network, int rank) const {
    StackOptions made;
    made.master = network.address(0);
    made.driver = rank == 0 ? GetParam().first : GetParam().second;
    return made;
  }
};
INSTANTIATE_TEST_SUITE_P(, XdpHostsTest, ::testing::ValuesIn(kPairs), [](const auto& info) {
  return std::string(info.param.first) + "_and_" + info.param.second;
});

// Both ways, small and large. False: they did not arrive, or not as they were sent.
bool exchange_messages(StackWorld& world, int other, std::uint64_t number) {
  std::vector<std::vector<std::byte>> out, in;
  Exchange exchange(*world.stack);
  for (const std::size_t bytes :
       {std::size_t{0}, std::size_t{8}, std::size_t{3'000}, std::size_t{5'000'000}}) {
    out.push_back(pattern(bytes, number + out.size()));
    in.emplace_back(bytes);
  }
  for (std::size_t i = 0; i < out.size(); ++i) {
    exchange.send(world.peer(other), {number, i}, out[i].data(), out[i].size());
    exchange.recv(world.peer(other), {number, i}, Sink::place(in[i].data()), in[i].size());
  }
  const Status status = exchange.run(30 * kSecond);
  EXPECT_TRUE(status.ok()) << status.message();
  return in == out;
}

TEST_P(XdpHostsTest, messages_pass_both_ways_at_every_level_of_security) {
  XDP_OR_SKIP();
  HOSTS_OR_SKIP(2);
  const auto& spaces = network.namespaces();
  for (const auto& [security, checksum] :
       {std::pair{"none", "crc32c"}, std::pair{"none", "kernel"}, std::pair{"auth", "crc32c"},
        std::pair{"encrypt", "crc32c"}}) {
    const auto statuses =
        run_processes({2, 60 * kSecond, {spaces[0], spaces[1]}}, [&](Fellowship& fellowship) {
          setenv("TACO_HARP_SECURITY", security, 1);
          setenv("TACO_HARP_CHECKSUM", checksum, 1);
          const StackOptions wanted = options(network, fellowship.rank());
          StackWorld world(fellowship, wanted);
          EXPECT_EQ(world.stack->transport_summary().substr(0, 9), "shm+" + wanted.driver + "(e");
          EXPECT_TRUE(exchange_messages(world, 1 - fellowship.rank(), 1));
          fellowship.barrier();
        });
    EXPECT_EQ(statuses, (std::vector<int>{0, 0})) << security;
  }
}

TEST_P(XdpHostsTest, a_killed_process_is_named_and_another_takes_its_place) {
  XDP_OR_SKIP();
  HOSTS_OR_SKIP(2);
  const auto& spaces = network.namespaces();
  for (int round = 0; round < 2; ++round) {
    const auto statuses =
        run_processes({2, 60 * kSecond, {spaces[0], spaces[1]}}, [&](Fellowship& fellowship) {
          StackWorld world(fellowship, options(network, fellowship.rank()));
          EXPECT_TRUE(exchange_messages(world, 1 - fellowship.rank(), 1));
          std::uint64_t in = 0;
          if (fellowship.rank() == 1) {
            fellowship.barrier();
            for (;;) pause();
          }
          Exchange doomed(*world.stack);
          doomed.recv(world.peer(1), {2, 1}, Sink::place(&in), 8);
          doomed.start();
          fellowship.barrier();
          kill(world.pids[1], SIGKILL);
          const Status status = doomed.finish(10 * kSecond);
          EXPECT_EQ(status.code(), Code::kPeerLost) << status.message();
        });
    EXPECT_EQ(statuses[0], 0);
    EXPECT_TRUE(WIFSIGNALED(statuses[1]));
  }
}

// Off the switch, with its carrier. What a filter of the kernel drops where it arrives, a program
// for XDP has seen before.
TEST_P(XdpHostsTest, a_link_that_was_dead_for_a_while_carries_on) {
  XDP_OR_SKIP();
  HOSTS_OR_SKIP(2);
  const auto& spaces = network.namespaces();
  constexpr int kSwitch = 2;
  const auto statuses =
      run_processes({2, 60 * kSecond, {spaces[0], spaces[1]}}, [&](Fellowship& fellowship) {
        StackWorld world(fellowship, options(network, fellowship.rank()));
        const int other = 1 - fellowship.rank();
        EXPECT_TRUE(exchange_messages(world, other, 1));
        fellowship.barrier();
        const auto out = pattern(30'000'000, 3);
        std::vector<std::byte> in(out.size());
        Exchange exchange(*world.stack);
        exchange.send(world.peer(other), {2, 1}, out.data(), out.size());
        exchange.recv(world.peer(other), {2, 1}, Sink::place(in.data()), in.size());
        exchange.start();
        if (fellowship.rank() == 0) {
          EXPECT_TRUE(network.run_in(kSwitch, "ip link set p1 nomaster"));
          usleep(500'000);
          EXPECT_TRUE(network.run_in(kSwitch, "ip link set p1 master br0"));
        }
        const Status status = exchange.finish(30 * kSecond);
        EXPECT_TRUE(status.ok()) << status.message();
        EXPECT_EQ(in, out);
        fellowship.barrier();
      });
  EXPECT_EQ(statuses, (std::vector<int>{0, 0}));
}

}  // namespace
}  // namespace taco::harp
