// The xdp driver while interfaces and neighbours change, in the middle of a job. Needs root and a
// kernel with AF_XDP; skipped with the reason elsewhere.
#include <arpa/inet.h>
#include <linux/if_ether.h>
#include <net/if.h>
#include <netpacket/packet.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <array>
#include <string>
#include <vector>

#include "base/own_fd.h"
#include "harp/drivers/xdp/xdp_end.h"
#include "support/eventually.h"

namespace taco::harp {
namespace {

using ::taco::testing::Fellowship;
using ::taco::testing::pattern;

// Its MAC address is another from now on, of which its kernel tells when it next sends. What goes
// to the former one its kernel does not take.
TEST(XdpNicTest, a_neighbour_that_becomes_another_is_followed) {
  XDP_OR_SKIP();
  HOSTS_OR_SKIP(2, 1500);
  between(network, [&](Fellowship& fellowship) {
    const bool changes = fellowship.rank() == 1;
    End end(fellowship, {network.address(fellowship.rank())}, changes ? "udp" : "xdp", 1500);
    end.become_acquainted();
    if (changes) {
      EXPECT_EQ(system("ip link set eth0 down && ip link set eth0 address 02:77:00:00:00:09 && "
                       "ip link set eth0 up"),
                0);
      EXPECT_TRUE(end.hear_until([&] { return end.nic->missing_st() == 0; }));
      EXPECT_TRUE(end.send(0, pattern(8, 6)));
    } else {
      EXPECT_TRUE(end.hear_until(1));
    }
    const auto datagram = pattern(80, 7);
    bool by_ring = false;
    for (int round = 0; round < 50 && !by_ring; ++round) {
      if (!changes) {
        by_ring = end.goes_by_ring(0, datagram);
        if (!by_ring) end.hear();
      }
      by_ring = fellowship.all_gather(by_ring ? "ring" : "socket")[0] == "ring";
      if (changes) {
        EXPECT_TRUE(end.hear_until([&] { return !end.heard.empty(); })) << "round " << round;
        end.heard.clear();
      }
      fellowship.barrier();
    }
    EXPECT_TRUE(by_ring);
  });
}

TEST(XdpNicTest, an_interface_that_goes_down_and_comes_back_is_used_again) {
  XDP_OR_SKIP();
  HOSTS_OR_SKIP(2, 1500);
  between(network, [&](Fellowship& fellowship) {
    const int me = fellowship.rank();
    End end(fellowship, {network.address(me)}, "xdp", 1500);
    end.become_acquainted();
    if (me == 0) {
      EXPECT_EQ(system("ip link set eth0 down"), 0);
      for (int i = 0; i < 2'000; ++i) EXPECT_TRUE(end.send(0, pattern(1'000, 7)));
      EXPECT_TRUE(end.hear_until([&] { return end.nic->missing_st() == 1; }));
      EXPECT_EQ(system("ip link set eth0 up"), 0);
      EXPECT_TRUE(end.hear_until([&] { return end.nic->missing_st() == 0; }));
    }
    fellowship.barrier();
    end.become_acquainted();
    EXPECT_TRUE(end.send(0, pattern(100, 8)));
    EXPECT_TRUE(end.hear_until(1));
    fellowship.barrier();
  });
}

TEST(XdpNicTest, an_interface_that_is_removed_and_made_again_is_used_again) {
  XDP_OR_SKIP();
  HOSTS_OR_SKIP(2, 1500);
  between(network, [&](Fellowship& fellowship) {
    lay_cable(network, fellowship, 1);
    End end(fellowship, {fellowship.rank() == 0 ? "10.99.1.1" : "10.99.1.2"}, "xdp", 1500);
    end.become_acquainted();
    if (fellowship.rank() == 0) {
      EXPECT_EQ(system("ip link del q0"), 0);
    }
    EXPECT_TRUE(end.hear_until([&] { return end.nic->missing_st() == 1; }));
    for (int i = 0; i < 100; ++i) EXPECT_TRUE(end.send(0, pattern(100, 7))) << "lost";
    fellowship.barrier();
    lay_cable(network, fellowship, 1);
    EXPECT_TRUE(end.hear_until([&] { return end.nic->missing_st() == 0; }));
    fellowship.barrier();
    end.become_acquainted();
    EXPECT_TRUE(end.send(0, pattern(100, 8)));
    EXPECT_TRUE(end.hear_until(1));
    fellowship.barrier();
  });
}

// Whether one of its timers goes off: others of its descriptors may tell of something, too.
bool has_alarm(const Nic& nic) {
  std::vector<pollfd> timers;
  for (const NicDescriptor& each : nic.descriptors()) {
    std::array<char, 64> kind{};
    const std::string link = "/proc/self/fd/" + std::to_string(each.fd);
    if (readlink(link.c_str(), kind.data(), kind.size() - 1) < 0) continue;
    if (strstr(kind.data(), "timerfd") != nullptr) timers.push_back({each.fd, POLLIN, 0});
  }
  return poll(timers.data(), timers.size(), 10'000) > 0;
}

// Somebody else has its queue for a moment, as the kernel itself often does: the engine goes on,
// and takes the queue once it is free.
TEST(XdpNicTest, an_interface_that_comes_back_to_a_busy_queue_is_used_once_the_queue_is_free) {
  XDP_OR_SKIP();
  HOSTS_OR_SKIP(2, 1500);
  between(network, [&](Fellowship& fellowship) {
    End end(fellowship, {network.address(fellowship.rank())}, "xdp", 1500);
    end.become_acquainted();
    if (fellowship.rank() == 0) {
      EXPECT_EQ(system("ip link set eth0 down"), 0);
      EXPECT_TRUE(end.hear_until([&] { return end.rings().empty(); }));
      EXPECT_EQ(system("ip link set eth0 up"), 0);
      auto other = XdpSocket::make({if_nametoindex("eth0"), 0});
      ASSERT_TRUE(other.ok()) << other.status().message();
      EXPECT_TRUE(testing::eventually([&] { return other.value()->take_queue().value(); }));
      EXPECT_TRUE(end.hear_until([&] { return end.nic->missing_st() == 0; }));
      end.hear();
      EXPECT_TRUE(end.rings().empty());
      other.value().reset();
      while (end.rings().empty()) {
        ASSERT_TRUE(has_alarm(*end.nic)) << "nobody wakes the engine to try again";
        end.hear();
      }
    }
    fellowship.barrier();
    end.become_acquainted();
    EXPECT_TRUE(end.send(0, pattern(100, 8)));
    EXPECT_TRUE(end.hear_until(1));
    fellowship.barrier();
  });
}

// Whether it goes by a ring within some sends of `bytes` each: never, always, or after a change.
bool goes_by_ring(End& end, std::size_t bytes, bool wanted) {
  return end.hear_until([&] {
    const std::uint64_t before = end.counters().sent_by_ring;
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(end.send(0, pattern(bytes, 1)));
    const std::uint64_t by_ring = end.counters().sent_by_ring - before;
    return wanted ? by_ring > 0 : by_ring == 0;
  });
}

// A packet longer than the interface's MTU goes to the kernel, which cuts it into fragments.
TEST(XdpNicTest, another_mtu_holds_from_the_moment_it_is_set) {
  XDP_OR_SKIP();
  HOSTS_OR_SKIP(2, 9000);
  between(network, [&](Fellowship& fellowship) {
    End end(fellowship, {network.address(fellowship.rank())}, "xdp", 9000);
    end.become_acquainted();
    if (fellowship.rank() == 0) {
      EXPECT_TRUE(goes_by_ring(end, 4'000, true));
      EXPECT_EQ(system("ip link set eth0 mtu 1500"), 0);
      EXPECT_TRUE(goes_by_ring(end, 4'000, false));
      EXPECT_TRUE(goes_by_ring(end, 1'400, true));
      EXPECT_EQ(system("ip link set eth0 mtu 9000"), 0);
      EXPECT_TRUE(goes_by_ring(end, 4'000, true));
    }
    fellowship.barrier();
  });
}

// The address that the latest frame with a datagram to that port came from.
std::string latest_source(int capture, std::uint16_t port, std::string latest) {
  std::array<unsigned char, 2'048> bytes;
  sockaddr_ll from{};
  for (socklen_t size = sizeof from;; size = sizeof from) {
    const ssize_t got = recvfrom(capture, bytes.data(), bytes.size(), MSG_DONTWAIT,
                                 reinterpret_cast<sockaddr*>(&from), &size);
    if (got < 0) return latest;
    const bool is_it = got > 28 && bytes[9] == IPPROTO_UDP && (bytes[22] << 8 | bytes[23]) == port;
    if (is_it && from.sll_pkttype != PACKET_OUTGOING) {
      latest.assign(reinterpret_cast<const char*>(from.sll_addr), sizeof(MacAddress));
    }
  }
}

// As a bond's or a virtual machine's may be, while the interface is up.
TEST(XdpNicTest, frames_bear_the_mac_address_that_the_interface_has_by_now) {
  XDP_OR_SKIP();
  HOSTS_OR_SKIP(2, 1500);
  between(network, [&](Fellowship& fellowship) {
    const bool changes = fellowship.rank() == 0;
    End end(fellowship, {network.address(fellowship.rank())}, changes ? "xdp" : "udp", 1500);
    end.become_acquainted();
    const OwnFd capture(socket(AF_PACKET, SOCK_DGRAM | SOCK_CLOEXEC, htons(ETH_P_IP)));
    if (changes) {
      EXPECT_EQ(system("ip link set eth0 address 02:77:00:00:00:0a"), 0);
    }
    const std::string wanted("\x02\x77\x00\x00\x00\x0a", sizeof(MacAddress));
    bool is_seen = false;
    for (int round = 0; round < 50 && !is_seen; ++round) {
      bool by_ring = false;
      if (changes) {
        by_ring = end.goes_by_ring(0, pattern(80, 7));
        end.hear();
      }
      by_ring = fellowship.all_gather(by_ring ? "ring" : "socket")[0] == "ring";
      std::string source;
      if (!changes) {
        EXPECT_TRUE(end.hear_until([&] { return !end.heard.empty(); })) << "round " << round;
        end.heard.clear();
        source = latest_source(capture.get(), port_of(end.nic->addresses()[0].endpoint), "");
      }
      is_seen = fellowship.all_gather(source)[1] == wanted && by_ring;
    }
    EXPECT_TRUE(is_seen);
    fellowship.barrier();
  });
}

}  // namespace
}  // namespace taco::harp
