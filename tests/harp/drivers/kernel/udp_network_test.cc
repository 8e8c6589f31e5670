#include "harp/drivers/kernel/udp_network.h"

#include <gtest/gtest.h>
#include <net/if.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <vector>

#include "harp/drivers/kernel/kernel_interfaces.h"
#include "harp/drivers/kernel/kernel_routes.h"
#include "harp/drivers/kernel/netlink.h"
#include "harp/drivers/kernel/udp_fixture.h"
#include "harp/drivers/networks.h"
#include "support/ip.h"
#include "support/processes.h"

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

// The kernel asks whether somebody else has it, and does not let it be used meanwhile: once a
// second, here so often that it still asks however busy the machine is. It counts to 255.
TEST(KernelNetworkTest, an_address_that_is_not_ready_is_left_out) {
  bool alone = false;
  std::thread([&] {
    alone = unshare(CLONE_NEWNET) == 0 &&
            system(
                "sysctl -qw net.ipv6.conf.default.disable_ipv6=0 "
                "net.ipv6.conf.default.dad_transmits=200 2>/dev/null; "
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
  LinkKind kind;
  bool overlay;
};

// As kernels with all of these devices describe them, since few have all.
TEST(KernelNetworkTest, bridges_and_tunnels_of_every_kind_lead_through_another_interface) {
  for (const Device& each : {
           Device{"eth0", {"", 1}, false},
           Device{"veth", {"veth", 1}, false},
           Device{"vlan", {"vlan", 1}, false},
           Device{"bond", {"bond", 1}, false},
           Device{"macvlan", {"macvlan", 1}, false},
           Device{"ib0", {"ipoib", 32}, false},
           Device{"docker0", {"bridge", 1}, true},
           Device{"tun0", {"tun", 65534}, true},
           Device{"tap0", {"tun", 1}, true},
           Device{"flannel.1", {"vxlan", 1}, true},
           Device{"genev_sys", {"geneve", 1}, true},
           Device{"wg0", {"wireguard", 65534}, true},
           Device{"ipip1", {"ipip", 768}, true},
           Device{"ip6tnl1", {"ip6tnl", 769}, true},
           Device{"sit1", {"sit", 776}, true},
           Device{"gre1", {"gre", 778}, true},
           Device{"ip6gre1", {"ip6gre", 823}, true},
           Device{"gretap1", {"gretap", 1}, true},
           Device{"other", {"of some other kind", 1, false}, true},
       }) {
    EXPECT_EQ(is_overlay(each.kind), each.overlay) << each.name;
  }
}

// Addresses of IPv4 may have labels, of which getifaddrs() tells in place of the name.
void check_labels() {
  const auto all = list_interfaces();
  ASSERT_TRUE(all.ok()) << all.status().message();
  for (const char* address : {"10.9.1.1", "10.9.1.2", "10.9.1.3", "10.9.2.1"}) {
    const Interface* const holder = holder_of(all.value(), ip(address));
    ASSERT_NE(holder, nullptr) << address;
    EXPECT_EQ(holder->name, "va") << address;
    EXPECT_EQ(holder->mtu, 1'400u) << address;
    EXPECT_EQ(holder->network.interface, if_nametoindex("va")) << address;
    EXPECT_EQ(holder->network.prefix, 24) << address;
    EXPECT_TRUE(holder->up) << address;
  }
}

TEST(KernelNetworkTest, an_address_with_a_label_is_of_the_interface_that_has_it) {
  if (!in_a_network("ip link add va mtu 1400 type veth peer name vb && ip link set vb up && "
                    "ip addr add 10.9.1.1/24 dev va && ip addr add 10.9.1.2/24 dev va label va:1 "
                    "&& ip addr add 10.9.1.3/24 dev va label va-keepalived && "
                    "ip addr add 10.9.2.1 peer 10.9.2.2/24 dev va label va:2 && "
                    "ip link set va up",
                    check_labels))
    GTEST_SKIP() << "no right to make a network namespace";
}

// Where /sys shows another namespace, as after `nsenter --net`.
void check_foreign_sys() {
  const auto all = list_interfaces();
  ASSERT_TRUE(all.ok()) << all.status().message();
  const Interface* const veth = holder_of(all.value(), ip("10.9.1.1"));
  const Interface* const bridge = holder_of(all.value(), ip("10.9.4.1"));
  ASSERT_TRUE(veth != nullptr && bridge != nullptr);
  EXPECT_EQ(veth->mtu, 1'400u);
  EXPECT_EQ(veth->mbits, 10'000u);
  EXPECT_FALSE(veth->overlay);
  EXPECT_TRUE(bridge->overlay);
  EXPECT_EQ(bridge->mtu, 1'500u);
}

TEST(KernelNetworkTest, an_interface_is_described_by_the_namespace_that_it_is_in) {
  if (!in_a_network("ip link add va mtu 1400 type veth peer name vb && ip link set vb up && "
                    "ip addr add 10.9.1.1/24 dev va && ip link set va up && "
                    "ip link add br9 type bridge && ip addr add 10.9.4.1/24 dev br9 && "
                    "ip link set br9 up",
                    check_foreign_sys))
    GTEST_SKIP() << "no right to make a network namespace";
}

// eth0 and eth1 on one network, eth2 on another, and a bridge that has an address of the first.
TEST(KernelNetworkTest, a_neighbour_is_reached_from_each_interface_on_its_network) {
  std::vector<Interface> host{interface("lo", "127.0.0.1"),  interface("eth0", "10.0.0.5"),
                              interface("eth0", "10.0.0.6"), interface("eth1", "10.0.0.7"),
                              interface("eth2", "10.0.1.5"), interface("eth3", "10.0.0.8", false),
                              interface("br0", "10.0.0.10")};
  host.back().overlay = true;
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
