// Stacks over DPDK's software devices: processes of one host by memif, which needs no privileges,
// and a host whose packets leave by DPDK's af_packet with one that uses the kernel's UDP. Skipped
// with the reason where DPDK is missing. EAL starts once a process, so each case has processes of
// its own.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <string>
#include <vector>

#include "base/env.h"
#include "harp/drivers/dpdk/dpdk_devices.h"
#include "harp/drivers/dpdk/dpdk_network.h"
#include "harp/engine/stack.h"
#include "harp/tools/exchange.h"
#include "support/network.h"
#include "support/processes.h"
#include "support/stack_world.h"
#include "support/temporary_directory.h"

namespace taco::harp {
namespace {

using ::taco::testing::Fellowship;
using ::taco::testing::pattern;
using ::taco::testing::run_processes;
using ::taco::testing::StackWorld;
using ::taco::testing::TemporaryDirectory;

constexpr Duration kDeadline = 60 * kSecond;

// Declares nothing, or skips.
#define DPDK_OR_SKIP()                                             \
  if (dlopen("libharp_dpdk.so", RTLD_NOW | RTLD_LOCAL) == nullptr) \
  GTEST_SKIP() << "DPDK is not here, or was not where this was built: " << dlerror()

// The end of a memif cable that this rank has: "net_memifN,... ADDRESSES".
std::string memif(const TemporaryDirectory& folder, int rank, int cable,
                  const std::string& addresses) {
  return "net_memif" + std::to_string(cable) + ",id=" + std::to_string(cable) +
         ",socket-abstract=no,socket=" + (folder / std::to_string(cable)) +
         ",role=" + (rank == 0 ? "server " : "client ") + addresses;
}

StackOptions over_dpdk(const std::string& devices) {
  setenv("TACO_HARP_DPDK", devices.c_str(), 1);
  StackOptions options;
  options.transport = StackOptions::Force::kUdp;
  options.driver = "dpdk";
  return options;
}

// Both send to each other and look at what has come.
Status exchange_with(StackWorld& world, int me, std::size_t bytes, std::uint64_t tag) {
  const int other = 1 - me;
  const auto out = pattern(bytes, 10 * tag + static_cast<std::uint64_t>(me));
  std::vector<std::byte> in(bytes);
  Exchange exchange(*world.stack);
  exchange.send(world.peer(other), {1, tag}, out.data(), out.size());
  exchange.recv(world.peer(other), {1, tag}, Sink::place(in.data()), in.size());
  const Status status = exchange.run(kDeadline);
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(in == pattern(bytes, 10 * tag + static_cast<std::uint64_t>(other)), status.ok());
  return status;
}

FramePortCounters counters_of(const std::string& devices) {
  const auto links = dpdk_links(parse_dpdk_devices(devices).value(), "");
  return links.value().front().port->counters();
}

TEST(DpdkTest, two_processes_exchange_over_memif_and_payload_is_not_copied_on_the_way) {
  DPDK_OR_SKIP();
  // The second server listens where the first, which has ended, has left its socket's name.
  const TemporaryDirectory folder;
  for (const char* const addresses : {"10.5.0.%/24", "fd05::%/64"}) {
    const auto statuses = run_processes({2, kDeadline, {}}, [&](Fellowship& fellowship) {
      const int me = fellowship.rank();
      std::string own = addresses;
      own.replace(own.find('%'), 1, std::to_string(me + 1));
      const std::string devices = memif(folder, me, 0, own);
      StackWorld world(fellowship, over_dpdk(devices));
      EXPECT_EQ(world.stack->transport_summary(), "dpdk(net_memif0)");
      constexpr std::size_t kBytes = 20'000'000;
      ASSERT_TRUE(exchange_with(world, me, 8, 1).ok());
      ASSERT_TRUE(exchange_with(world, me, kBytes, 2).ok());
      fellowship.barrier();
      const FramePortCounters counters = counters_of(devices);
      EXPECT_GT(counters.frames_received, kBytes / 1472);
      EXPECT_EQ(counters.receive_copied, 0u);
      // HARP's headers, of 32 bytes in 1,472, acknowledgements and other messages that are short.
      EXPECT_LT(counters.send_copied, kBytes / 20);
      fellowship.barrier();
    });
    EXPECT_EQ(statuses, (std::vector<int>{0, 0})) << addresses;
  }
}

TEST(DpdkTest, every_security_level_and_checksum_works_over_memif) {
  DPDK_OR_SKIP();
  const std::pair<const char*, const char*> levels[] = {
      {"none", "crc32c"}, {"auth", "crc32c"}, {"encrypt", "crc32c"}, {"auth", "kernel"}};
  for (const auto& [security, checksum] : levels) {
    const TemporaryDirectory folder;
    const auto statuses = run_processes({2, kDeadline, {}}, [&](Fellowship& fellowship) {
      const int me = fellowship.rank();
      setenv("TACO_HARP_SECURITY", security, 1);
      setenv("TACO_HARP_CHECKSUM", checksum, 1);
      StackWorld world(fellowship,
                       over_dpdk(memif(folder, me, 0, "10.5.0." + std::to_string(me + 1) + "/24")));
      ASSERT_TRUE(exchange_with(world, me, 3'000'001, 1).ok());
      fellowship.barrier();
    });
    EXPECT_EQ(statuses, (std::vector<int>{0, 0})) << security << ", " << checksum;
  }
}

TEST(DpdkTest, several_devices_and_several_ports_are_paths_of_one_session) {
  DPDK_OR_SKIP();
  const TemporaryDirectory folder;
  const auto statuses = run_processes({2, kDeadline, {}}, [&](Fellowship& fellowship) {
    const int me = fellowship.rank();
    const std::string host = std::to_string(me + 1);
    setenv("TACO_PATHS", "2", 1);
    StackOptions options = over_dpdk(memif(folder, me, 0, "10.5.0." + host + "/24") + ";" +
                                     memif(folder, me, 1, "10.5.1." + host + "/24"));
    options.host_id = host;  // those of one host take one way
    StackWorld world(fellowship, options);
    for (std::uint64_t tag = 1; tag < 20 && world.stack->stats().paths < 4; ++tag) {
      ASSERT_TRUE(exchange_with(world, me, 5'000'000, tag).ok());
      // The other may need it for as long as this one.
      const bool both = fellowship.all_gather(world.stack->stats().paths < 4 ? "more" : "done") ==
                        std::vector<std::string>{"done", "done"};
      if (both) break;
    }
    EXPECT_EQ(world.stack->stats().paths, 4u);
    fellowship.barrier();
  });
  EXPECT_EQ(statuses, (std::vector<int>{0, 0}));
}

TEST(DpdkTest, a_killed_process_is_reported_lost_and_its_death_ends_nobody_else) {
  DPDK_OR_SKIP();
  for (const int victim : {0, 1}) {
    const TemporaryDirectory folder;
    const auto statuses = run_processes({2, kDeadline, {}}, [&](Fellowship& fellowship) {
      const int me = fellowship.rank();
      StackOptions options =
          over_dpdk(memif(folder, me, 0, "10.5.0." + std::to_string(me + 1) + "/24"));
      options.peer_timeout = 1'500 * kMillisecond;
      StackWorld world(fellowship, options);
      std::vector<std::byte> out(200'000'000), in(out.size());
      if (me == victim) {
        Exchange doomed(*world.stack);
        doomed.send(world.peer(1 - me), {1, 1}, out.data(), out.size());
        doomed.start();
        fellowship.barrier();
        for (;;) pause();
      }
      Exchange doomed(*world.stack);
      doomed.recv(world.peer(1 - me), {1, 1}, Sink::place(in.data()), in.size());
      doomed.start();
      fellowship.barrier();
      kill(world.pids[victim], SIGKILL);  // in the midst of it
      const Status status = doomed.finish(30 * kSecond);
      EXPECT_EQ(status.code(), Code::kPeerLost) << status.message();
    });
    EXPECT_EQ(statuses[1 - victim], 0);
    EXPECT_TRUE(WIFSIGNALED(statuses[victim]));
  }
}

// What a network of virtual links hands on unfinished, a device takes as it is: super-packets.
bool finishes_what_it_sends(const char* interface) {
  const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  ethtool_value off{ETHTOOL_STXCSUM, 0};
  ifreq request{};
  strncpy(request.ifr_name, interface, IFNAMSIZ - 1);
  request.ifr_data = reinterpret_cast<char*>(&off);
  const bool done = ioctl(fd, SIOCETHTOOL, &request) == 0;
  close(fd);
  return done;
}

TEST(DpdkTest, a_host_of_dpdk_and_one_of_kernel_udp_exchange_and_know_of_each_others_death) {
  DPDK_OR_SKIP();
  for (const int victim : {0, 1}) {
    HOSTS_OR_SKIP(2);
    const auto& spaces = network.namespaces();
    const auto statuses =
        run_processes({2, kDeadline, {spaces[0], spaces[1]}}, [&](Fellowship& fellowship) {
          const int me = fellowship.rank();
          StackOptions options;
          options.transport = StackOptions::Force::kUdp;
          if (me == 0) {
            options =
                over_dpdk("net_af_packet0,iface=eth0,blocksz=65536,framesz=2048,framecnt=1024 " +
                          network.address(0) + "/24");
          } else {
            ASSERT_TRUE(finishes_what_it_sends("eth0")) << strerror(errno);
          }
          options.master = network.address(0);
          options.peer_timeout = 2 * kSecond;
          StackWorld world(fellowship, options);
          ASSERT_TRUE(exchange_with(world, me, 8, 1).ok());
          ASSERT_TRUE(exchange_with(world, me, 3'000'000, 2).ok());
          fellowship.barrier();
          if (me == victim) {
            for (;;) pause();
          }
          std::uint64_t in = 0;
          Exchange doomed(*world.stack);
          doomed.recv(world.peer(victim), {1, 3}, Sink::place(&in), sizeof in);
          doomed.start();
          kill(world.pids[victim], SIGKILL);
          EXPECT_EQ(doomed.finish(30 * kSecond).code(), Code::kPeerLost);
        });
    EXPECT_EQ(statuses[1 - victim], 0);
  }
}

// The environment is as it was: the program's threads may run wherever they could, and the devices
// are there for whoever comes next, one at a time; a child that is forked has none of them.
TEST(DpdkTest, dpdk_changes_nothing_for_the_program_and_its_devices_serve_one_after_another) {
  DPDK_OR_SKIP();
  const auto statuses = run_processes({1, kDeadline, {}}, [&](Fellowship&) {
    cpu_set_t before, after;
    ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
    const auto devices = parse_dpdk_devices("net_ring0 10.5.0.1/24").value();
    const DpdkNetwork network(devices, "");
    const auto all = network.interfaces();
    ASSERT_TRUE(all.ok()) << all.status().message();
    ASSERT_EQ(sched_getaffinity(0, sizeof after, &after), 0);
    EXPECT_TRUE(CPU_EQUAL(&before, &after));
    NicOptions options;
    options.locals = {{all.value().front().address, 1500}};
    for (int i = 0; i < 2; ++i) {
      auto nic = network.open(options);
      ASSERT_TRUE(nic.ok()) << nic.status().message();
      EXPECT_EQ(network.open(options).status().code(), Code::kResource) << "it is in use";
    }
    const DpdkNetwork other(parse_dpdk_devices("net_ring1 10.5.0.1/24").value(), "");
    EXPECT_NE(other.interfaces().status().message().find("TACO_HARP_DPDK"), std::string::npos);
    const pid_t child = fork();
    if (child == 0) {
      const Status status = network.interfaces().status();
      _exit(status.code() == Code::kUnsupported ? 0 : 1);
    }
    int status = -1;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  });
  EXPECT_EQ(statuses, std::vector<int>{0});
}

TEST(DpdkTest, a_device_that_cannot_be_had_is_an_error_that_names_it) {
  DPDK_OR_SKIP();
  const struct {
    const char* device;
    const char* why;
  } cases[] = {
      {"net_nothing0 10.5.0.1/24", "net_nothing0"},
      {"net_af_packet0,iface=nothing7 10.5.0.1/24", "No such device"},
      {"0000:99:00.0 10.5.0.1/24", "vfio-pci"},
      {"net_memif0,role=server,socket-abstract=no,socket=/nowhere/s 10.5.0.1/24", "directory"},
      {"net_ring0 10.5.0.1/24 mtu=9000 slots=16384", "slots"},
  };
  for (const auto& each : cases) {
    const auto statuses = run_processes({1, kDeadline, {}}, [&](Fellowship&) {
      const DpdkNetwork network(parse_dpdk_devices(each.device).value(), "");
      const Status status = network.interfaces().status();
      EXPECT_EQ(status.code(), Code::kResource);
      EXPECT_NE(status.message().find(each.why), std::string::npos) << status.message();
      EXPECT_EQ(network.interfaces().status().message(), status.message()) << "EAL starts once";
    });
    EXPECT_EQ(statuses, std::vector<int>{0}) << each.device;
  }
}

}  // namespace
}  // namespace taco::harp
