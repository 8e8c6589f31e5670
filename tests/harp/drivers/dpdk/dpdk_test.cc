// Stacks over DPDK's software devices: processes of one host by memif, which needs no privileges,
// and a host whose packets leave by DPDK's af_packet with one that uses the kernel's UDP. Skipped
// with the reason where DPDK is missing. EAL starts once a process, so each case has processes of
// its own.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <linux/ethtool.h>
#include <linux/if_ether.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netpacket/packet.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <string>
#include <tuple>
#include <vector>

#include "base/own_fd.h"
#include "harp/drivers/dpdk/dpdk_devices.h"
#include "harp/drivers/dpdk/dpdk_network.h"
#include "harp/drivers/dpdk/dpdk_settings.h"
#include "harp/drivers/frames/udp_frame.h"
#include "harp/drivers/xdp/xdp_here.h"
#include "harp/engine/stack.h"
#include "harp/tools/exchange.h"
#include "support/dpdk_world.h"
#include "support/ip.h"
#include "support/network.h"
#include "support/processes.h"

namespace taco::harp {
namespace {

using ::taco::testing::counters_of;
using ::taco::testing::exchange_with;
using ::taco::testing::Fellowship;
using ::taco::testing::kDpdkDeadline;
using ::taco::testing::memif;
using ::taco::testing::over_dpdk;
using ::taco::testing::pattern;
using ::taco::testing::run_processes;
using ::taco::testing::StackWorld;
using ::taco::testing::TemporaryDirectory;

TEST(DpdkTest, two_processes_exchange_over_memif_and_payload_is_not_copied_on_the_way) {
  DPDK_OR_SKIP();
  // The second server listens where the first, which has ended, has left its socket's name.
  const TemporaryDirectory folder;
  for (const char* const addresses : {"10.5.0.%/24", "fd05::%/64"}) {
    const auto statuses = run_processes({2, kDpdkDeadline, {}}, [&](Fellowship& fellowship) {
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
      // Acknowledgements and other messages that are short.
      EXPECT_LT(counters.send_copied, kBytes / 100);
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
    const auto statuses = run_processes({2, kDpdkDeadline, {}}, [&](Fellowship& fellowship) {
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
  const auto statuses = run_processes({2, kDpdkDeadline, {}}, [&](Fellowship& fellowship) {
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
    const auto statuses = run_processes({2, kDpdkDeadline, {}}, [&](Fellowship& fellowship) {
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

// Has the kernel finish the packets that it sends by a virtual link, which would hand them on
// without checksums and uncut, as no device does.
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

void send_to_nobody(const std::string& address, int datagrams, std::size_t bytes) {
  const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(9);
  inet_pton(AF_INET, address.c_str(), &to.sin_addr);
  const std::vector<std::byte> datagram(bytes, std::byte{0xee});
  for (int i = 0; i < datagrams; ++i) {
    const auto sent =
        sendto(fd, datagram.data(), bytes, 0, reinterpret_cast<const sockaddr*>(&to), sizeof to);
    EXPECT_TRUE(sent == static_cast<ssize_t>(bytes) || errno == ECONNREFUSED) << strerror(errno);
  }
  close(fd);
}

// The address of a host of a test's network that either version of IP has there.
std::string address_of(const ::taco::testing::Network& network, int host, bool v6) {
  return v6 ? "fd77::" + std::to_string(host + 1) : network.address(host);
}

TEST(DpdkTest, a_host_of_dpdk_and_one_of_kernel_udp_exchange_and_know_of_each_others_death) {
  DPDK_OR_SKIP();
  for (const auto& [victim, v6] : {std::pair(0, false), {1, false}, {0, true}, {1, true}}) {
    HOSTS_OR_SKIP(2);
    for (int host = 0; v6 && host < 2; ++host) {
      const std::string own = address_of(network, host, true) + "/64";
      ASSERT_TRUE(network.run_in(host, "ip addr add " + own + " dev eth0 nodad"));
    }
    const auto& spaces = network.namespaces();
    const auto statuses =
        run_processes({2, kDpdkDeadline, {spaces[0], spaces[1]}}, [&](Fellowship& fellowship) {
          const int me = fellowship.rank();
          const std::string first = address_of(network, 0, v6);
          StackOptions options;
          options.transport = StackOptions::Force::kUdp;
          if (me == 0) {
            options =
                over_dpdk("net_af_packet0,iface=eth0,blocksz=65536,framesz=2048,framecnt=1024 " +
                          first + (v6 ? "/64" : "/24"));
          } else {
            ASSERT_TRUE(finishes_what_it_sends("eth0")) << strerror(errno);
          }
          options.master = first;
          options.peer_timeout = 5 * kSecond;
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
    EXPECT_EQ(statuses[1 - victim], 0) << (v6 ? "IPv6" : "IPv4");
  }
}

TEST(DpdkTest, slots_and_frames_longer_than_the_mtu_do_no_harm) {
  DPDK_OR_SKIP();
  HOSTS_OR_SKIP(2, 9000);
  const auto& spaces = network.namespaces();
  const auto statuses =
      run_processes({2, kDpdkDeadline, {spaces[0], spaces[1]}}, [&](Fellowship& fellowship) {
        const int me = fellowship.rank();
        StackOptions options;
        options.transport = StackOptions::Force::kUdp;
        const std::string devices =
            "net_af_packet0,iface=eth0,blocksz=65536,framesz=16384,framecnt=256 " +
            network.address(0) + "/24 mtu=1500";
        if (me == 0) {
          options = over_dpdk(devices);
        } else {
          ASSERT_TRUE(finishes_what_it_sends("eth0")) << strerror(errno);
        }
        options.master = network.address(0);
        StackWorld world(fellowship, options);
        ASSERT_TRUE(exchange_with(world, me, 8, 1).ok());
        if (me == 1) send_to_nobody(network.address(0), 200, 8'900);
        fellowship.barrier();
        ASSERT_TRUE(exchange_with(world, me, 300'000, 2).ok());
        if (me == 0) {
          EXPECT_GT(counters_of(devices).frames_received, 200u);
        }
        fellowship.barrier();
      });
  EXPECT_EQ(statuses, (std::vector<int>{0, 0}));
}

// A datagram to a host's MAC address and port, with the tag of a VLAN or without.
std::vector<std::byte> frame_to(const MacAddress& mac, const Endpoint& from, const Endpoint& to,
                                const std::vector<std::byte>& datagram, bool is_tagged) {
  const IoSlice slice{datagram.data(), datagram.size()};
  std::vector<std::byte> frame(udp_headers_bytes(to));
  write_udp_headers({{std::byte{2}}, mac, from, to}, {{&slice, 1}, datagram.size()}, frame);
  frame.insert(frame.end(), datagram.begin(), datagram.end());
  constexpr std::array kTag{std::byte{0x81}, std::byte{0}, std::byte{0}, std::byte{5}};
  if (is_tagged) frame.insert(frame.begin() + 12, kTag.begin(), kTag.end());
  return frame;
}

void send_by_eth0(const std::vector<std::byte>& frame) {
  const OwnFd out(socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0));
  sockaddr_ll device{};
  device.sll_family = AF_PACKET;
  device.sll_protocol = htons(ETH_P_ALL);
  device.sll_ifindex = static_cast<int>(if_nametoindex("eth0"));
  EXPECT_EQ(sendto(out.get(), frame.data(), frame.size(), 0,
                   reinterpret_cast<const sockaddr*>(&device), sizeof device),
            static_cast<ssize_t>(frame.size()));
}

// The kernel takes the tag of a VLAN out of a frame, and af_packet's driver puts it back, or says
// beside the frame what it was.
TEST(DpdkTest, a_frame_of_a_vlan_is_for_others) {
  DPDK_OR_SKIP();
  HOSTS_OR_SKIP(2);
  const auto& spaces = network.namespaces();
  const auto statuses =
      run_processes({2, kDpdkDeadline, {spaces[0], spaces[1]}}, [&](Fellowship& fellowship) {
        const auto tagged = pattern(100, 1), plain = pattern(100, 2);
        struct {
          Endpoint at;
          MacAddress mac;
        } receiver{};
        if (fellowship.rank() == 1) {
          memcpy(&receiver, fellowship.all_gather("")[0].data(), sizeof receiver);
          const Endpoint from = ip(network.address(1), 9);
          send_by_eth0(frame_to(receiver.mac, from, receiver.at, tagged, true));
          send_by_eth0(frame_to(receiver.mac, from, receiver.at, plain, false));
          return fellowship.barrier();
        }
        const auto devices =
            parse_dpdk_devices(
                "net_af_packet0,iface=eth0,blocksz=65536,framesz=2048,framecnt=1024 " +
                network.address(0) + "/24")
                .value();
        const DpdkNetwork dpdk(devices, "");
        NicOptions options;
        options.locals = {{ip(network.address(0)), 1500}};
        const auto nic = dpdk.open(options);
        ASSERT_TRUE(nic.ok()) << nic.status().message();
        receiver = {nic.value()->addresses()[0].endpoint,
                    dpdk_links(devices, "").value().front().port->info().mac};
        fellowship.all_gather({reinterpret_cast<const char*>(&receiver), sizeof receiver});
        std::array<RxPacket, 1> packet;
        const Time limit = monotonic_now() + 10 * kSecond;
        while (nic.value()->receive_st(packet) == 0 && monotonic_now() < limit) continue;
        EXPECT_TRUE(std::ranges::equal(packet[0].data, plain));
        fellowship.barrier();
      });
  EXPECT_EQ(statuses, (std::vector<int>{0, 0}));
}

// DPDK's own driver of AF_XDP takes the first buffer of a frame and no other.
TEST(DpdkTest, a_host_of_dpdk_over_af_xdp_and_one_of_kernel_udp_exchange) {
  DPDK_OR_SKIP();
  XDP_OR_SKIP();
  HOSTS_OR_SKIP(2);
  const auto& spaces = network.namespaces();
  const auto statuses =
      run_processes({2, kDpdkDeadline, {spaces[0], spaces[1]}}, [&](Fellowship& fellowship) {
        const int me = fellowship.rank();
        StackOptions options;
        options.transport = StackOptions::Force::kUdp;
        const std::string devices =
            "net_af_xdp0,iface=eth0,force_copy=1 " + network.address(0) + "/24";
        if (me == 0) {
          options = over_dpdk(devices);
        } else {
          ASSERT_TRUE(finishes_what_it_sends("eth0")) << strerror(errno);
        }
        options.master = network.address(0);
        StackWorld world(fellowship, options);
        ASSERT_TRUE(exchange_with(world, me, 8, 1).ok());
        ASSERT_TRUE(exchange_with(world, me, 3'000'000, 2).ok());
        if (me == 0) {
          EXPECT_GE(counters_of(devices).send_copied, 3'000'000u);
        }
        fellowship.barrier();
      });
  EXPECT_EQ(statuses, (std::vector<int>{0, 0}));
}

// A tap's driver computes checksums, and verifies them, as NICs do. Its other end is this host's
// kernel.
TEST(DpdkTest, a_device_that_has_checksums_computes_and_verifies_them) {
  DPDK_OR_SKIP();
  if (access("/dev/net/tun", R_OK | W_OK) != 0) GTEST_SKIP() << "/dev/net/tun: " << strerror(errno);
  HOSTS_OR_SKIP(1);
  const std::string space = network.namespaces()[0];
  for (const auto& [own, kernels, prefix] :
       {std::tuple("10.6.0.1", "10.6.0.2", "/24"), std::tuple("fd06::1", "fd06::2", "/64")}) {
    const auto statuses =
        run_processes({2, kDpdkDeadline, {space, space}}, [&](Fellowship& fellowship) {
          const int me = fellowship.rank();
          StackOptions options;
          options.transport = StackOptions::Force::kUdp;
          if (me == 0) {
            const std::string devices = std::string("net_tap0,iface=tap7 ") + own + prefix;
            options = over_dpdk(devices);
            const auto links = dpdk_links(parse_dpdk_devices(devices).value(), "");
            ASSERT_TRUE(links.ok()) << links.status().message();
            EXPECT_TRUE(links.value().front().port->info().checksums);
            const std::string address = std::string(kernels) + prefix;
            ASSERT_TRUE(network.run_in(0, "ip addr add " + address + " dev tap7 nodad"));
            ASSERT_TRUE(network.run_in(0, "ip link set tap7 up"));
          }
          fellowship.barrier();
          options.host_id = std::to_string(me);
          options.master = me == 0 ? kernels : own;
          StackWorld world(fellowship, options);
          ASSERT_TRUE(exchange_with(world, me, 8, 1).ok());
          ASSERT_TRUE(exchange_with(world, me, 3'000'000, 2).ok());
          fellowship.barrier();
        });
    EXPECT_EQ(statuses, (std::vector<int>{0, 0})) << own;
  }
}

}  // namespace
}  // namespace taco::harp
