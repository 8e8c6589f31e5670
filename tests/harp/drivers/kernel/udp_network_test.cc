#include "harp/drivers/kernel/udp_network.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "harp/drivers/kernel/kernel_interfaces.h"
#include "harp/drivers/kernel/kernel_routes.h"
#include "harp/drivers/kernel/netlink.h"
#include "harp/drivers/networks.h"
#include "support/ip.h"
#include "support/processes.h"
#include "support/temporary_directory.h"

namespace taco::harp {
namespace {

TEST(KernelNetworkTest, this_machine_has_a_loopback_interface_and_a_route_to_it) {
  const auto all = list_interfaces();
  ASSERT_TRUE(all.ok()) << all.status().message();
  bool loopback = false;
  for (const Interface& each : all.value()) loopback |= each.loopback && each.up;
  EXPECT_TRUE(loopback);
  const std::vector<Endpoint> sources = KernelRoutes().sources_of(ip("127.0.0.1"));
  ASSERT_EQ(sources.size(), 1u);
  EXPECT_TRUE(is_loopback(sources.front()));
  EXPECT_FALSE(crosses_router(ip("127.0.0.1")));
}

// The kernel asks for a second or two whether somebody else has it, and does not let it be used.
TEST(KernelNetworkTest, an_address_that_is_not_ready_is_left_out) {
  bool alone = false;
  std::thread([&] {
    alone = unshare(CLONE_NEWNET) == 0 &&
            system(
                "sysctl -qw net.ipv6.conf.default.disable_ipv6=0 2>/dev/null; "
                "ip link add v0 type veth peer name p0 && ip link set p0 up && "
                "ip addr add 10.9.3.1/24 dev v0 && ip link set v0 up && "
                "ip addr add 2001:db8:3::7/64 dev v0") == 0;
    if (!alone) return;
    const auto every = list_addresses(), ready = list_interfaces();
    ASSERT_TRUE(every.ok() && ready.ok());
    const auto has = [](const std::vector<Interface>& all, const char* address) {
      return holder_of(all, ip(address)) != nullptr;
    };
    EXPECT_TRUE(has(every.value(), "10.9.3.1") && has(every.value(), "2001:db8:3::7"));
    EXPECT_TRUE(has(ready.value(), "10.9.3.1"));
    EXPECT_FALSE(has(ready.value(), "2001:db8:3::7"));
  }).join();
  if (!alone) GTEST_SKIP() << "no right to make a network namespace";
}

struct Device {
  const char* name;
  const char* type;    // ARPHRD_* of <linux/if_arp.h>
  const char* iflink;  // the interface that it leads through, by index
  const char* uevent;
  const char* folder;  // that only this kind has; "": none
  bool overlay;
};

// As kernels with all of these devices describe them, since few have all.
TEST(KernelNetworkTest, bridges_and_tunnels_of_every_kind_lead_through_another_interface) {
  const testing::TemporaryDirectory devices;
  for (const Device& each : {
           Device{"eth0", "1", "2", "INTERFACE=eth0\nIFINDEX=2\n", "device", false},
           Device{"veth", "1", "9", "INTERFACE=veth\nIFINDEX=3\n", "", false},
           Device{"vlan", "1", "2", "DEVTYPE=vlan\nINTERFACE=vlan\nIFINDEX=4\n", "", false},
           Device{"bond", "1", "5", "DEVTYPE=bond\nINTERFACE=bond\nIFINDEX=5\n", "bonding", false},
           Device{"ib0", "32", "6", "INTERFACE=ib0\nIFINDEX=6\n", "", false},
           Device{"docker0", "1", "7", "DEVTYPE=bridge\n", "bridge", true},
           Device{"tun0", "65534", "8", "INTERFACE=tun0\nIFINDEX=8\n", "tun_flags", true},
           Device{"flannel.1", "1", "9", "DEVTYPE=vxlan\n", "", true},
           Device{"genev_sys", "1", "10", "DEVTYPE=geneve\n", "", true},
           Device{"wg0", "65534", "11", "DEVTYPE=wireguard\n", "", true},
           Device{"ipip1", "768", "2", "INTERFACE=ipip1\n", "", true},
           Device{"ip6tnl1", "769", "2", "INTERFACE=ip6tnl1\n", "", true},
           Device{"sit1", "776", "2", "INTERFACE=sit1\n", "", true},
           Device{"gre1", "778", "2", "INTERFACE=gre1\n", "", true},
           Device{"ip6gre1", "823", "2", "INTERFACE=ip6gre1\n", "", true},
           Device{"gretap1", "1", "0", "INTERFACE=gretap1\n", "", true},
       }) {
    const std::filesystem::path folder = devices / each.name;
    std::filesystem::create_directories(folder / each.folder);
    std::ofstream(folder / "type") << each.type << '\n';
    std::ofstream(folder / "iflink") << each.iflink << '\n';
    std::ofstream(folder / "uevent") << each.uevent;
    EXPECT_EQ(is_overlay(each.name, devices.path().c_str()), each.overlay) << each.name;
  }
}

// eth0 and eth1 on one network, eth2 on another, and a bridge that has an address of the first.
TEST(KernelNetworkTest, a_neighbour_is_reached_from_each_interface_on_its_network) {
  std::vector<Interface> host{interface("lo", "127.0.0.1"),  interface("eth0", "10.0.0.5"),
                              interface("eth0", "10.0.0.6"), interface("eth1", "10.0.0.7"),
                              interface("eth2", "10.0.1.5"), interface("eth3", "10.0.0.8", false)};
  for (Interface& each : host) each.network = {1, 24};
  const auto towards = [&](const char* destination, const char* first) {
    std::string text;
    for (const Endpoint& source : sources_towards(ip(destination), ip(first), host)) {
      text += to_string(source) + " ";
    }
    return text;
  };
  EXPECT_EQ(towards("10.0.0.9", "10.0.0.5"), "10.0.0.5 10.0.0.7 ");
  EXPECT_EQ(towards("10.0.0.9", "10.0.0.7"), "10.0.0.7 10.0.0.5 ");
  EXPECT_EQ(towards("10.0.1.9", "10.0.1.5"), "10.0.1.5 ");
  EXPECT_EQ(towards("10.0.2.9", "10.0.0.5"), "10.0.0.5 ") << "by a router";
  EXPECT_EQ(towards("10.0.0.9", "10.7.7.7"), "10.7.7.7 ") << "an address of nobody's";
}

TEST(KernelNetworkTest, many_lookups_in_one_moment_find_what_single_ones_do) {
  const std::vector<Endpoint> all{ip("127.0.0.1"), ip("127.0.0.9"), ip("203.0.113.1"),
                                  ip("127.0.0.1", 80), ip("198.51.100.7")};
  const UdpNetwork network;
  std::vector<std::vector<Endpoint>> single;
  for (const Endpoint& to : all) single.push_back(network.routes()(to));
  EXPECT_EQ(single[0], std::vector<Endpoint>{ip("127.0.0.1")});
  const RouteLookup now = network.routes();
  for (int round = 0; round < 2; ++round) {
    for (std::size_t i = 0; i < all.size(); ++i) EXPECT_EQ(now(all[i]), single[i]) << i;
  }
}

TEST(KernelNetworkTest, one_moment_has_one_socket_for_however_many_lookups) {
  const UdpNetwork network;
  const RouteLookup now = network.routes();
  EXPECT_FALSE(now(ip("127.0.0.1")).empty());
  const int before = ::taco::testing::count_descriptors();
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(now(ip("127.0.0.1")).empty());
  EXPECT_EQ(::taco::testing::count_descriptors(), before);
}

// News that comes at once is heard in parts, between which its hearer looks after other things.
TEST(NetlinkTest, of_a_flood_of_news_a_bounded_part_is_heard_at_a_time) {
  int both[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, both), 0);
  const OwnFd ours(both[0]), kernels(both[1]);
  constexpr int kNews = 150;
  nlmsghdr news{};
  news.nlmsg_len = sizeof news;
  news.nlmsg_type = RTM_NEWLINK;
  for (int i = 0; i < kNews; ++i)
    ASSERT_EQ(write(kernels.get(), &news, sizeof news), static_cast<ssize_t>(sizeof news));
  int heard = 0;
  std::vector<int> parts;
  while (heard < kNews && parts.size() < kNews) {
    const int before = heard;
    EXPECT_TRUE(hear_kernel(ours.get(), [&](const nlmsghdr&) { ++heard; }));
    parts.push_back(heard - before);
  }
  EXPECT_EQ(parts, (std::vector<int>{64, 64, 22}));
}

void check_lost_news() {
  auto news = open_netlink(RTMGRP_LINK);
  ASSERT_TRUE(news.ok()) << news.status().message();
  const int room = 1;
  ASSERT_EQ(setsockopt(news->get(), SOL_SOCKET, SO_RCVBUF, &room, sizeof room), 0);
  for (int i = 0; i < 20; ++i)
    ASSERT_EQ(system("ip link add v0 type veth peer name p0 && ip link del v0"), 0);
  EXPECT_FALSE(hear_kernel(news->get(), [](const nlmsghdr&) {}));
  EXPECT_TRUE(hear_kernel(news->get(), [](const nlmsghdr&) {})) << "that is said once";
}

TEST(NetlinkTest, news_that_did_not_fit_are_told_of) {
  bool alone = false;
  std::thread([&] {
    alone = unshare(CLONE_NEWNET) == 0;
    if (alone) check_lost_news();
  }).join();
  if (!alone) GTEST_SKIP() << "no right to make a network namespace";
}

TEST(NetworksTest, an_unknown_driver_is_an_error_that_lists_the_known) {
  for (const char* driver : {"auto", "udp"}) {
    const auto network = network_named(driver);
    ASSERT_TRUE(network.ok()) << network.status().message();
    EXPECT_EQ(network.value()->name(), "udp");
  }
  EXPECT_EQ(network_named("xdp").value()->name(), "xdp");
  const auto none = network_named("rdma");
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.status().code(), Code::kInvalidArgument);
  for (const char* word : {"TACO_HARP_DRIVER=\"rdma\"", "auto", "udp", "xdp"}) {
    EXPECT_NE(none.status().message().find(word), std::string::npos) << none.status().message();
  }
}

}  // namespace
}  // namespace taco::harp
