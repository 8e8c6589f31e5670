// Stacks on several hosts, which are network namespaces: routes, MTUs, refusals that are rationed,
// links that die in silence. Needs root; skipped with the reason elsewhere.
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "harp/address.h"
#include "harp/drivers/kernel/kernel_interfaces.h"
#include "harp/drivers/kernel/udp.h"
#include "harp/engine/stack.h"
#include "harp/tools/exchange.h"
#include "support/eventually.h"
#include "support/ip.h"
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

StackOptions options(const Network& network) {
  StackOptions made;
  made.master = network.address(0);
  return made;
}

TEST(HostsTest, ranks_on_different_hosts_exchange_over_udp_and_on_one_host_over_shared_memory) {
  HOSTS_OR_SKIP(2);
  const auto& spaces = network.namespaces();
  const auto statuses = run_processes(
      {4, 60 * kSecond, {spaces[0], spaces[0], spaces[1], spaces[1]}}, [&](Fellowship& fellowship) {
        StackWorld world(fellowship, options(network));
        const int me = fellowship.rank();
        EXPECT_EQ(world.stack->transport_summary().substr(0, 9), "shm+udp(e");
        Exchange exchange(*world.stack);
        std::vector<std::vector<std::byte>> out(4), in(4);
        for (int rank = 0; rank < 4; ++rank) {
          if (rank == me) continue;
          EXPECT_EQ(world.stack->is_local(world.peer(rank)), rank / 2 == me / 2);
          EXPECT_EQ(world.stack->host_of(world.peer(rank)) == world.stack->host(),
                    rank / 2 == me / 2);
          out[rank] = pattern(20'000'000, me * 4 + rank);
          in[rank].resize(out[rank].size());
          exchange.send(world.peer(rank), {1, 1}, out[rank].data(), out[rank].size());
          exchange.recv(world.peer(rank), {1, 1}, Sink::place(in[rank].data()), in[rank].size());
        }
        const Status status = exchange.run(30 * kSecond);
        ASSERT_TRUE(status.ok()) << status.message();
        for (int rank = 0; rank < 4; ++rank) {
          if (rank == me) continue;
          EXPECT_EQ(in[rank], pattern(20'000'000, rank * 4 + me)) << "from " << rank;
        }
        fellowship.barrier();
        EXPECT_EQ(world.stack->stats().retransmits, 0u);
        EXPECT_EQ(world.stack->stats().socket_overflows, 0u);
        fellowship.barrier();
      });
  EXPECT_EQ(statuses, (std::vector<int>{0, 0, 0, 0}));
}

TEST(HostsTest, a_killed_process_on_another_host_is_named_soon) {
  HOSTS_OR_SKIP(2);
  const auto& spaces = network.namespaces();
  const auto statuses =
      run_processes({2, 60 * kSecond, {spaces[0], spaces[1]}}, [&](Fellowship& fellowship) {
        StackWorld world(fellowship, options(network));
        std::vector<std::byte> in(1 << 20);
        if (fellowship.rank() == 1) {
          fellowship.barrier();
          for (;;) pause();
        }
        Exchange doomed(*world.stack);
        doomed.recv(world.peer(1), {1, 1}, Sink::place(in.data()), in.size());
        doomed.start();
        fellowship.barrier();
        usleep(50'000);
        const Time killed = monotonic_now();
        kill(world.pids[1], SIGKILL);
        const Status status = doomed.finish(10 * kSecond);
        const double after = static_cast<double>(monotonic_now() - killed) / kSecond;
        fprintf(stderr, "[ seen after %.1f ms: %s ]\n", after * 1e3, status.message().c_str());
        EXPECT_EQ(status.code(), Code::kPeerLost);
        ASSERT_NE(status.peer_loss(), nullptr);
        EXPECT_NE(status.peer_loss()->address.find(network.address(1)), std::string::npos);
        EXPECT_LT(after, 5.0) << "by silence it would take ten";
      });
  EXPECT_EQ(statuses[0], 0);
  EXPECT_TRUE(WIFSIGNALED(statuses[1]));
}

TEST(HostsTest, a_silent_link_is_given_up_at_the_peer_timeout_and_not_before) {
  HOSTS_OR_SKIP(2);
  const auto& spaces = network.namespaces();
  const auto statuses =
      run_processes({2, 60 * kSecond, {spaces[0], spaces[1]}}, [&](Fellowship& fellowship) {
        StackOptions impatient = options(network);
        impatient.peer_timeout = 5 * kSecond;
        StackWorld world(fellowship, impatient);
        std::uint64_t out = 1, in = 0;
        Exchange first(*world.stack);
        first.send(world.peer(1 - fellowship.rank()), {1, 1}, &out, 8);
        first.recv(world.peer(1 - fellowship.rank()), {1, 1}, Sink::place(&in), 8);
        ASSERT_TRUE(first.run().ok());
        fellowship.barrier();
        if (fellowship.rank() == 0) {
          ASSERT_TRUE(network.cut(1));
        }
        fellowship.barrier();
        Exchange doomed(*world.stack);
        doomed.recv(world.peer(1 - fellowship.rank()), {1, 2}, Sink::place(&in), 8);
        const Time start = monotonic_now();
        const Status status = doomed.run(20 * kSecond);
        const double after = static_cast<double>(monotonic_now() - start) / kSecond;
        EXPECT_EQ(status.code(), Code::kPeerLost) << status.message();
        EXPECT_NE(status.message().find("TACO_PEER_TIMEOUT_MS"), std::string::npos)
            << status.message();
        EXPECT_GT(after, 4.0);
        EXPECT_LT(after, 15.0);
        fellowship.barrier();
      });
  EXPECT_EQ(statuses, (std::vector<int>{0, 0}));
}

TEST(HostsTest, a_short_silence_of_the_link_is_survived) {
  HOSTS_OR_SKIP(2);
  const auto& spaces = network.namespaces();
  const auto statuses =
      run_processes({2, 60 * kSecond, {spaces[0], spaces[1]}}, [&](Fellowship& fellowship) {
        StackWorld world(fellowship, options(network));
        const int other = 1 - fellowship.rank();
        const auto out = pattern(30'000'000, 3);
        std::vector<std::byte> in(out.size());
        Exchange exchange(*world.stack);
        exchange.send(world.peer(other), {1, 1}, out.data(), out.size());
        exchange.recv(world.peer(other), {1, 1}, Sink::place(in.data()), in.size());
        exchange.start();
        if (fellowship.rank() == 0) {
          EXPECT_TRUE(network.cut(1));
          usleep(500'000);
          EXPECT_TRUE(network.mend(1));
        }
        const Status status = exchange.finish(20 * kSecond);
        EXPECT_TRUE(status.ok()) << status.message();
        EXPECT_EQ(in, out);
        fellowship.barrier();
      });
  EXPECT_EQ(statuses, (std::vector<int>{0, 0}));
}

TEST(HostsTest, hosts_that_share_only_loopback_refuse_each_other) {
  HOSTS_OR_SKIP(2);
  const auto& spaces = network.namespaces();
  const auto statuses =
      run_processes({2, 60 * kSecond, {spaces[0], spaces[1]}}, [&](Fellowship& fellowship) {
        StackOptions loopback;
        loopback.interfaces = {"lo"};
        auto stack = Stack::acquire(loopback);
        ASSERT_TRUE(stack.ok()) << stack.status().message();
        const auto addresses = fellowship.all_gather(stack.value()->address());
        const auto added = stack.value()->add_peer(addresses[1 - fellowship.rank()]);
        EXPECT_EQ(added.status().code(), Code::kRendezvous);
        EXPECT_NE(added.status().message().find("TACO_IFNAME"), std::string::npos);
        fellowship.barrier();
      });
  EXPECT_EQ(statuses, (std::vector<int>{0, 0}));
}

TEST(HostsTest, segments_larger_than_the_mtu_still_arrive_in_fragments) {
  HOSTS_OR_SKIP(2);
  const auto& spaces = network.namespaces();
  const auto statuses =
      run_processes({2, 60 * kSecond, {spaces[0], spaces[1]}}, [&](Fellowship& fellowship) {
        NicOptions wanted;
        const auto interfaces = list_interfaces();
        for (const auto& each : interfaces.value()) {
          if (each.name == "eth0" && !is_link_local(each.address)) {
            wanted.locals = {{each.address, 1'500}};
          }
        }
        auto nic = UdpNic::create({wanted}).value();
        const Endpoint own = nic->addresses()[0].endpoint;
        const auto all =
            fellowship.all_gather(std::string(reinterpret_cast<const char*>(&own), sizeof own));
        if (fellowship.rank() == 0) {
          Endpoint there;
          memcpy(&there, all[1].data(), sizeof there);
          // As after the path's MTU dropped: a super-packet that the route cannot carry.
          const auto payload = pattern(3 * 4'000, 1);
          const IoSlice slice{payload.data(), payload.size()};
          const TxPacket packet{&there, 0, {&slice, 1}, payload.size(), 4'000};
          EXPECT_EQ(nic->send_st({&packet, 1}), 1u);
        } else {
          const auto payload = pattern(3 * 4'000, 1);
          std::vector<std::byte> got;
          const Time limit = monotonic_now() + 5 * kSecond;
          while (got.size() < payload.size() && monotonic_now() < limit) {
            std::array<RxPacket, 4> packets;
            const std::size_t count = nic->receive_st(packets);
            for (std::size_t i = 0; i < count; ++i) {
              got.insert(got.end(), packets[i].data.begin(), packets[i].data.end());
            }
          }
          EXPECT_EQ(got, payload);
        }
        fellowship.barrier();
      });
  EXPECT_EQ(statuses, (std::vector<int>{0, 0}));
}

// For groups to come, with peers that are not known yet.
TEST(HostsTest, what_a_process_publishes_is_where_it_is_by_then) {
  HOSTS_OR_SKIP(1);
  const std::string before = network.address(0), after = before + "77";
  const auto check = [&](Fellowship&) {
    const auto stack = Stack::acquire(options(network)).value();
    const auto publishes = [&](const std::string& host) {
      const auto address = decode(stack->address());
      return std::ranges::any_of(address.value().paths, [&](const PathAddress& path) {
        return to_string(path.endpoint).starts_with(host + ":");
      });
    };
    EXPECT_TRUE(publishes(before));
    EXPECT_EQ(system("ip address flush dev eth0"), 0);
    EXPECT_EQ(system(("ip address add " + after + "/24 dev eth0").c_str()), 0);
    EXPECT_TRUE(testing::eventually([&] { return publishes(after); }));
    EXPECT_FALSE(publishes(before));
    EXPECT_EQ(system("ip address flush dev eth0"), 0);
    EXPECT_TRUE(testing::eventually([&] { return publishes(before); })) << "it may come back";
    stack->close();
  };
  const std::vector<int> statuses =
      run_processes({1, 60 * kSecond, {network.namespaces()[0]}}, check);
  EXPECT_EQ(statuses, std::vector<int>{0});
}

// One that another host has too (the kernel has found out, and lets nobody use it), and one about
// which the kernel still asks.
TEST(HostsTest, addresses_that_are_not_ready_keep_no_process_from_starting) {
  HOSTS_OR_SKIP(2);
  const auto may_v6 = [&](int host) {
    return network.run_in(host, "sysctl -qw net.ipv6.conf.eth0.disable_ipv6=0") &&
           network.run_in(host, "sysctl -qw net.ipv6.conf.eth0.accept_dad=1");
  };
  if (!may_v6(0) || !may_v6(1)) GTEST_SKIP() << "no IPv6 here";
  ASSERT_TRUE(network.run_in(1, "ip address add 2001:db8:3::7/64 dev eth0 nodad"));
  ASSERT_TRUE(network.run_in(0, "ip address add 2001:db8:3::7/64 dev eth0"));
  const char* const kFailed = "sh -c 'ip -6 -o address show dev eth0 dadfailed | grep -q 3::7'";
  ASSERT_TRUE(testing::eventually([&] { return network.run_in(0, kFailed); }));
  ASSERT_TRUE(network.run_in(0, "sysctl -qw net.ipv6.conf.eth0.dad_transmits=1000"));
  ASSERT_TRUE(network.run_in(0, "ip address add 2001:db8:3::8/64 dev eth0"));
  const auto check = [&](Fellowship& fellowship) {
    if (fellowship.rank() == 0) {
      const auto all = list_addresses(), ready = list_interfaces();
      ASSERT_TRUE(all.ok() && ready.ok());
      for (const char* each : {"2001:db8:3::7", "2001:db8:3::8"}) {
        EXPECT_NE(holder_of(all.value(), ip(each)), nullptr) << each;
        EXPECT_EQ(holder_of(ready.value(), ip(each)), nullptr) << each;
      }
    }
    StackWorld world(fellowship, options(network));
    std::uint64_t out = 1, in = 0;
    Exchange both(*world.stack);
    both.send(world.peer(1 - fellowship.rank()), {1, 1}, &out, 8);
    both.recv(world.peer(1 - fellowship.rank()), {1, 1}, Sink::place(&in), 8);
    const Status status = both.run(30 * kSecond);
    EXPECT_TRUE(status.ok()) << status.message();
    fellowship.barrier();
  };
  const auto& spaces = network.namespaces();
  EXPECT_EQ(run_processes({2, 60 * kSecond, {spaces[0], spaces[1]}}, check),
            (std::vector<int>{0, 0}));
}

}  // namespace
}  // namespace taco::harp
