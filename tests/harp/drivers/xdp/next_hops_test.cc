// Next hops while the host's routing changes. Needs the right to make a network namespace, and no
// AF_XDP.
#include "harp/drivers/xdp/next_hops.h"

#include <errno.h>
#include <gtest/gtest.h>
#include <net/if.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <string>
#include <thread>

#include "support/eventually.h"
#include "support/ip.h"

// By which the kernel is asked: in place of the C library's.
static bool kernel_has_no_memory = false;
extern "C" ssize_t send(int fd, const void* data, size_t bytes, int flags) {
  if (!kernel_has_no_memory) return syscall(SYS_sendto, fd, data, bytes, flags, nullptr, 0);
  errno = ENOBUFS;
  return -1;
}

namespace taco::harp {
namespace {

// Two routers by two interfaces, each with a table of its own beside the main one, which knows the
// first.
const char* const kTwoWays =
    "sysctl -qw net.ipv6.conf.default.disable_ipv6=0 2>/dev/null; "
    "sysctl -qw net.ipv6.conf.default.accept_dad=0 2>/dev/null; "
    "for i in 1 2; do "
    "ip link add w$i type veth peer name x$i && ip link set x$i up && "
    "ip addr add 10.9.$i.1/24 dev w$i && ip addr add 2001:db8:$i::1/64 dev w$i nodad && "
    "ip link set w$i up && ip neigh add 10.9.$i.2 lladdr 02:00:00:00:00:0$i dev w$i && "
    "ip neigh add 2001:db8:$i::2 lladdr 02:00:00:00:00:0$i dev w$i && "
    "ip route add 10.8.0.0/16 via 10.9.$i.2 table 10$i && "
    "ip route add 2001:db8:8::/48 via 2001:db8:$i::2 table 10$i || exit 1; done; "
    "ip route add 10.8.0.0/16 via 10.9.1.2 && ip route add 2001:db8:8::/48 via 2001:db8:1::2";

// Where frames to `to` leave by now: soon by the interface of that name.
void expect_way(NextHops& hops, const char* from, const char* to, const char* interface) {
  const unsigned index = if_nametoindex(interface);
  std::string last = "by the kernel";
  EXPECT_TRUE(testing::eventually([&] {
    const NextHops::Hop* const hop = hops.find(ip(from), {}, ip(to), monotonic_now());
    if (hop == nullptr) return false;
    last = "by " + std::to_string(hop->interface) + ", to .." + std::to_string(int(hop->mac[5]));
    return hop->interface == index && int(hop->mac[5]) == interface[1] - '0';
  })) << "to "
      << to << " by " << interface << " (" << index << "), not " << last;
}

template <class Check>
bool with_two_ways(const Check& check) {
  bool alone = false;
  std::thread([&] {
    alone = unshare(CLONE_NEWNET) == 0 && system(kTwoWays) == 0;
    if (!alone) return;
    auto hops = NextHops::open();
    ASSERT_TRUE(hops.ok()) << hops.status().message();
    check(*hops.value());
  }).join();
  return alone;
}

TEST(NextHopsTest, a_rule_that_comes_or_goes_is_followed) {
  const bool alone = with_two_ways([](NextHops& hops) {
    expect_way(hops, "10.9.1.1", "10.8.0.9", "w1");
    ASSERT_EQ(system("ip rule add to 10.8.0.0/16 table 102"), 0);
    expect_way(hops, "10.9.1.1", "10.8.0.9", "w2");
    ASSERT_EQ(system("ip rule del to 10.8.0.0/16 table 102"), 0);
    expect_way(hops, "10.9.1.1", "10.8.0.9", "w1");
  });
  if (!alone) GTEST_SKIP() << "no right to make a network namespace";
}

TEST(NextHopsTest, a_rule_of_ipv6_that_comes_or_goes_is_followed) {
  const bool alone = with_two_ways([](NextHops& hops) {
    expect_way(hops, "2001:db8:1::1", "2001:db8:8::9", "w1");
    ASSERT_EQ(system("ip -6 rule add to 2001:db8:8::/48 table 102"), 0);
    expect_way(hops, "2001:db8:1::1", "2001:db8:8::9", "w2");
    ASSERT_EQ(system("ip -6 rule del to 2001:db8:8::/48 table 102"), 0);
    expect_way(hops, "2001:db8:1::1", "2001:db8:8::9", "w1");
  });
  if (!alone) GTEST_SKIP() << "no right to make a network namespace";
}

// Routes that refer to it do not change, and the kernel says nothing of them if it is told not to.
TEST(NextHopsTest, a_next_hop_that_routes_refer_to_is_followed) {
  bool has_objects = false;
  const bool alone = with_two_ways([&](NextHops& hops) {
    has_objects = system(
                      "sysctl -qw net.ipv4.nexthop_compat_mode=0 2>/dev/null && "
                      "ip nexthop add id 1 via 10.9.1.2 dev w1 && "
                      "ip route add 10.7.0.0/16 nhid 1") == 0;
    if (!has_objects) return;
    expect_way(hops, "10.9.1.1", "10.7.0.9", "w1");
    ASSERT_EQ(system("ip nexthop replace id 1 via 10.9.2.2 dev w2"), 0);
    expect_way(hops, "10.9.1.1", "10.7.0.9", "w2");
  });
  if (!alone) GTEST_SKIP() << "no right to make a network namespace";
  if (!has_objects) GTEST_SKIP() << "the kernel, or ip, has no next hops by themselves";
}

TEST(NextHopsTest, a_kernel_that_cannot_answer_is_asked_again) {
  const bool alone = with_two_ways([](NextHops& hops) {
    kernel_has_no_memory = true;
    EXPECT_EQ(hops.find(ip("10.9.1.1"), {}, ip("10.8.0.9"), monotonic_now()), nullptr);
    kernel_has_no_memory = false;
    expect_way(hops, "10.9.1.1", "10.8.0.9", "w1");
  });
  if (!alone) GTEST_SKIP() << "no right to make a network namespace";
}

}  // namespace
}  // namespace taco::harp
