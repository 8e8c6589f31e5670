// Stacks over DPDK's software devices whose links, peers and devices fail while they are used: what
// can be healed is, the rest is reported by name, and no process ends because of it.
#include <gtest/gtest.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "harp/engine/stack.h"
#include "harp/tools/exchange.h"
#include "support/dpdk_world.h"
#include "support/eventually.h"
#include "support/network.h"
#include "support/processes.h"

namespace taco::harp {
namespace {

using ::taco::testing::eventually;
using ::taco::testing::exchange_with;
using ::taco::testing::Fellowship;
using ::taco::testing::kDpdkDeadline;
using ::taco::testing::memif;
using ::taco::testing::over_dpdk;
using ::taco::testing::pattern;
using ::taco::testing::run_processes;
using ::taco::testing::StackWorld;
using ::taco::testing::TemporaryDirectory;

// Ends a memif client's connection to the server that listens at `path`, as the death of either
// does.
bool cut_connection(const std::string& path) {
  for (int fd = 3; fd < 1024; ++fd) {
    sockaddr_un peer{};
    socklen_t length = sizeof peer;
    if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &length) != 0) continue;
    if (peer.sun_family != AF_UNIX || path != peer.sun_path) continue;
    return shutdown(fd, SHUT_RDWR) == 0;
  }
  return false;
}

// Both exchange until each says that it has seen enough.
void exchange_until(StackWorld& world, Fellowship& fellowship, std::uint64_t first_tag,
                    const std::function<bool()>& enough) {
  const std::vector<std::string> both{"enough", "enough"};
  for (std::uint64_t tag = first_tag; tag < first_tag + 500; ++tag) {
    ASSERT_TRUE(exchange_with(world, fellowship.rank(), 500'000, tag).ok());
    if (fellowship.all_gather(enough() ? "enough" : "more") == both) return;
  }
  FAIL() << "it does not come about";
}

TEST(DpdkFaultsTest, one_of_two_cables_is_pulled_and_plugged_in_and_nothing_is_lost) {
  DPDK_OR_SKIP();
  const TemporaryDirectory folder;
  const auto statuses = run_processes({2, kDpdkDeadline, {}}, [&](Fellowship& fellowship) {
    const int me = fellowship.rank();
    const std::string host = std::to_string(me + 1);
    StackOptions options = over_dpdk(memif(folder, me, 0, "10.5.0." + host + "/24") + ";" +
                                     memif(folder, me, 1, "10.5.1." + host + "/24"));
    options.host_id = host;
    StackWorld world(fellowship, options);
    const auto paths = [&] { return world.stack->stats().paths; };
    exchange_until(world, fellowship, 1'000, [&] { return paths() == 2; });
    const std::string cable = folder / std::to_string(1), away = folder / std::string("away");
    if (me == 1) {
      std::filesystem::rename(cable, away);  // nobody can come back by it
      ASSERT_TRUE(cut_connection(cable));
    }
    exchange_until(world, fellowship, 2'000, [&] { return paths() == 1; });
    if (me == 1) std::filesystem::rename(away, cable);
    exchange_until(world, fellowship, 3'000, [&] { return paths() == 2; });
    EXPECT_EQ(world.notes.lost, 0);
    fellowship.barrier();
  });
  EXPECT_EQ(statuses, (std::vector<int>{0, 0}));
}

TEST(DpdkFaultsTest, the_only_cable_is_pulled_and_its_client_finds_the_server_again) {
  DPDK_OR_SKIP();
  const TemporaryDirectory folder;
  const auto statuses = run_processes({2, kDpdkDeadline, {}}, [&](Fellowship& fellowship) {
    const int me = fellowship.rank();
    StackWorld world(fellowship,
                     over_dpdk(memif(folder, me, 0, "10.5.0." + std::to_string(me + 1) + "/24")));
    ASSERT_TRUE(exchange_with(world, me, 1'000'000, 1).ok());
    for (std::uint64_t round = 0; round < 5; ++round) {
      const auto out = pattern(30'000'000, round);
      std::vector<std::byte> in(out.size());
      Exchange exchange(*world.stack);
      exchange.send(world.peer(1 - me), {2, round}, out.data(), out.size());
      exchange.recv(world.peer(1 - me), {2, round}, Sink::place(in.data()), in.size());
      const std::uint64_t before = world.stack->stats().packets_received;
      exchange.start();
      ASSERT_TRUE(eventually([&] { return world.stack->stats().packets_received > before + 100; }));
      if (me == 1) {
        ASSERT_TRUE(cut_connection(folder / std::to_string(0)));
      }
      const Status status = exchange.finish(30 * kSecond);
      ASSERT_TRUE(status.ok()) << status.message();
      EXPECT_EQ(in, out);
      fellowship.barrier();
    }
    EXPECT_EQ(world.notes.lost, 0);
  });
  EXPECT_EQ(statuses, (std::vector<int>{0, 0}));
}

char state_of(pid_t pid) {
  char state = '?';
  if (FILE* const file = fopen(("/proc/" + std::to_string(pid) + "/stat").c_str(), "re")) {
    if (fscanf(file, "%*d (%*[^)]) %c", &state) != 1) state = '?';
    fclose(file);
  }
  return state;
}

// Whether nothing has left for half a second.
bool is_stuck(StackWorld& world) {
  std::uint64_t bytes = 0;
  Time since = monotonic_now();
  return eventually([&] {
    if (std::exchange(bytes, world.stack->stats().bytes_sent) != bytes) {
      since = monotonic_now();
    }
    return monotonic_now() - since > 500 * kMillisecond;
  });
}

// The ring to the stopped one fills, and takes no more. Then all of it arrives.
TEST(DpdkFaultsTest, a_peer_that_is_stopped_for_a_while_loses_nothing) {
  DPDK_OR_SKIP();
  const TemporaryDirectory folder;
  const auto statuses = run_processes({2, kDpdkDeadline, {}}, [&](Fellowship& fellowship) {
    const int me = fellowship.rank();
    StackOptions options =
        over_dpdk(memif(folder, me, 0, "10.5.0." + std::to_string(me + 1) + "/24"));
    options.peer_timeout = 30 * kSecond;
    StackWorld world(fellowship, options);
    ASSERT_TRUE(exchange_with(world, me, 8, 1).ok());
    const auto out = pattern(50'000'000, 2);
    std::vector<std::byte> in(out.size());
    Exchange exchange(*world.stack);
    if (me == 0) {
      exchange.send(world.peer(1), {1, 2}, out.data(), out.size());
      exchange.start();
      fellowship.barrier();
      ASSERT_TRUE(eventually([&] { return world.stack->stats().bytes_sent > 1'000'000; }));
      ASSERT_EQ(kill(world.pids[1], SIGSTOP), 0);
      ASSERT_TRUE(eventually([&] { return state_of(world.pids[1]) == 'T'; }));
      EXPECT_TRUE(is_stuck(world));
      ASSERT_EQ(kill(world.pids[1], SIGCONT), 0);
    } else {
      exchange.recv(world.peer(0), {1, 2}, Sink::place(in.data()), in.size());
      exchange.start();
      fellowship.barrier();
    }
    const Status status = exchange.finish(30 * kSecond);
    EXPECT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(in == out, me == 1);
    EXPECT_EQ(world.notes.lost, 0);
    fellowship.barrier();
  });
  EXPECT_EQ(statuses, (std::vector<int>{0, 0}));
}

std::string af_packet(const std::string& addresses) {
  return "net_af_packet0,iface=eth0,blocksz=65536,framesz=2048,framecnt=1024 " + addresses;
}

TEST(DpdkFaultsTest, an_interface_that_goes_down_and_comes_back_loses_nothing) {
  DPDK_OR_SKIP();
  HOSTS_OR_SKIP(2);
  const auto& spaces = network.namespaces();
  const ::taco::testing::ProcessOptions in_hosts{2, kDpdkDeadline, {spaces[0], spaces[1]}};
  const auto statuses = run_processes(in_hosts, [&](Fellowship& fellowship) {
    const int me = fellowship.rank();
    StackOptions options = over_dpdk(af_packet(network.address(me) + "/24"));
    options.master = network.address(0);
    options.peer_timeout = 30 * kSecond;
    StackWorld world(fellowship, options);
    ASSERT_TRUE(exchange_with(world, me, 1'000'000, 1).ok());
    const auto out = pattern(3'000'000, 2);
    std::vector<std::byte> in(out.size());
    Exchange exchange(*world.stack);
    fellowship.barrier();
    if (me == 0) {
      ASSERT_TRUE(network.run_in(0, "ip link set eth0 down"));
    }
    fellowship.barrier();
    exchange.send(world.peer(1 - me), {1, 2}, out.data(), out.size());
    exchange.recv(world.peer(1 - me), {1, 2}, Sink::place(in.data()), in.size());
    const std::uint64_t before = world.stack->stats().packets_sent;
    exchange.start();
    EXPECT_TRUE(eventually([&] { return world.stack->stats().packets_sent > before; }));
    fellowship.barrier();
    if (me == 0) {
      ASSERT_TRUE(network.run_in(0, "ip link set eth0 up"));
    }
    const Status status = exchange.finish(40 * kSecond);
    EXPECT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(in, out);
    fellowship.barrier();
  });
  EXPECT_EQ(statuses, (std::vector<int>{0, 0}));
}

TEST(DpdkFaultsTest, a_device_that_is_removed_has_its_peers_reported_lost_by_both_sides) {
  DPDK_OR_SKIP();
  HOSTS_OR_SKIP(2);
  const auto& spaces = network.namespaces();
  const ::taco::testing::ProcessOptions in_hosts{2, kDpdkDeadline, {spaces[0], spaces[1]}};
  const auto statuses = run_processes(in_hosts, [&](Fellowship& fellowship) {
    const int me = fellowship.rank();
    StackOptions options = over_dpdk(af_packet(network.address(me) + "/24"));
    options.master = network.address(0);
    options.peer_timeout = 5 * kSecond;
    StackWorld world(fellowship, options);
    ASSERT_TRUE(exchange_with(world, me, 1'000'000, 1).ok());
    fellowship.barrier();
    std::uint64_t in = 0;
    Exchange doomed(*world.stack);
    doomed.recv(world.peer(1 - me), {1, 2}, Sink::place(&in), sizeof in);
    doomed.start();
    if (me == 0) {
      ASSERT_TRUE(network.run_in(0, "ip link delete eth0"));
    }
    const Status status = doomed.finish(30 * kSecond);
    EXPECT_EQ(status.code(), Code::kPeerLost) << status.message();
    fellowship.barrier();
  });
  EXPECT_EQ(statuses, (std::vector<int>{0, 0}));
}

}  // namespace
}  // namespace taco::harp
