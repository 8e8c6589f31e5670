// The xdp driver between two hosts, which are network namespaces. Needs root and a kernel with
// AF_XDP; skipped with the reason elsewhere.
#include <errno.h>
#include <gtest/gtest.h>
#include <linux/if_xdp.h>
#include <net/if.h>
#include <netpacket/packet.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "base/own_fd.h"
#include "harp/drivers/frames/udp_frame.h"
#include "harp/drivers/xdp/xdp_end.h"

// By which a ring is to be emptied: in place of the C library's.
static bool kernel_sends_nothing = false;
extern "C" ssize_t sendto(int fd, const void* data, size_t bytes, int flags, const sockaddr* to,
                          socklen_t length) {
  if (!kernel_sends_nothing || data != nullptr) {
    return syscall(SYS_sendto, fd, data, bytes, flags, to, length);
  }
  errno = EAGAIN;
  return -1;
}

// To know how often the kernel is asked what rings have dropped: in place of the C library's.
static int times_counted = 0;
extern "C" int getsockopt(int fd, int level, int name, void* value, socklen_t* length) noexcept {
  if (level == SOL_XDP && name == XDP_STATISTICS) ++times_counted;
  return static_cast<int>(syscall(SYS_getsockopt, fd, level, name, value, length));
}

namespace taco::harp {
namespace {

using ::taco::testing::Fellowship;
using ::taco::testing::Network;
using ::taco::testing::pattern;
using ::taco::testing::run_processes;

void expect_refused(const Status& status, std::initializer_list<const char*> words) {
  EXPECT_FALSE(status.ok());
  for (const char* word : words) {
    EXPECT_NE(status.message().find(word), std::string::npos) << status.message();
  }
}

// Host i has fd77::(i + 1) beside its IPv4 address.
std::string address6(int host) { return "fd77::" + std::to_string(host + 1); }
bool add_ipv6(const Network& network, int hosts) {
  bool good = true;
  for (int host = 0; host < hosts; ++host) {
    good &= network.run_in(host, "ip addr add " + address6(host) + "/64 dev eth0 nodad");
  }
  return good;
}

void datagrams_of_every_length_pass(const Network& network, std::size_t mtu) {
  ASSERT_TRUE(add_ipv6(network, 2));
  between(network, [&](Fellowship& fellowship) {
    const int me = fellowship.rank();
    End end(fellowship, {network.address(me), address6(me)}, "xdp", mtu);
    end.become_acquainted();
    for (std::uint32_t path = 0; path < 2; ++path) {
      const std::size_t most = mtu - (path == 0 ? 28 : 48);
      std::vector<std::vector<std::byte>> all;
      for (const std::size_t bytes :
           {std::size_t{0}, std::size_t{1}, std::size_t{17}, std::size_t{999}, most - 1, most}) {
        all.push_back(pattern(bytes, bytes));
      }
      const std::uint64_t by_sockets = end.counters().sent_by_socket;
      const Time begin = monotonic_now();
      for (const auto& each : all) EXPECT_TRUE(end.send(path, each));
      EXPECT_TRUE(end.hear_until(all.size()));
      EXPECT_EQ(end.heard, all) << "path " << path;
      const auto seconds = static_cast<std::uint64_t>((monotonic_now() - begin) / kSecond);
      EXPECT_LE(end.counters().sent_by_socket, by_sockets + 1 + seconds)
          << "the neighbour is confirmed once a second";
      fellowship.barrier();
      end.heard.clear();
    }
    EXPECT_EQ(end.nic->overflows(), 0u);
    EXPECT_EQ(end.counters().damaged, 0u);
    fellowship.barrier();
  });
}

TEST(XdpNicTest, datagrams_of_every_length_pass_by_rings_over_ipv4_and_ipv6) {
  XDP_OR_SKIP();
  HOSTS_OR_SKIP(2, 1500);
  datagrams_of_every_length_pass(network, 1500);
}

TEST(XdpNicTest, frames_of_several_pieces_carry_jumbo_datagrams) {
  XDP_OR_SKIP();
  HOSTS_OR_SKIP(2, 9000);
  datagrams_of_every_length_pass(network, 9000);
}

// An interface whose driver takes no program: a macvlan on the veth, which answers for its address
// alone.
TEST(XdpNicTest, an_interface_without_xdp_in_its_driver_is_used_all_the_same) {
  XDP_OR_SKIP();
  HOSTS_OR_SKIP(2, 1500);
  between(network, [&](Fellowship& fellowship) {
    const int me = fellowship.rank();
    const std::string own = "10.99.0." + std::to_string(me + 1);
    ASSERT_EQ(system("sysctl -qw net.ipv4.conf.all.arp_ignore=1"), 0);
    ASSERT_EQ(system("ip link add link eth0 name m0 type macvlan mode bridge"), 0);
    ASSERT_TRUE(set_up("m0", own));
    fellowship.barrier();
    End end(fellowship, {own}, "xdp", 1500);
    end.become_acquainted();
    const auto bytes = pattern(20 * 1'400, 9);
    const std::uint64_t by_ring = end.counters().received_by_ring;
    EXPECT_TRUE(end.send(0, bytes, 1'400));
    EXPECT_TRUE(end.hear_until(20));
    EXPECT_EQ(end.heard.back(), std::vector(bytes.end() - 1'400, bytes.end()));
    EXPECT_GE(end.counters().received_by_ring, by_ring + 19);
    fellowship.barrier();
  });
}

TEST(XdpNicTest, a_run_arrives_as_its_datagrams_also_when_it_lies_in_pieces) {
  XDP_OR_SKIP();
  HOSTS_OR_SKIP(2, 1500);
  between(network, [&](Fellowship& fellowship) {
    End end(fellowship, {network.address(fellowship.rank())}, "xdp", 1500);
    end.become_acquainted();
    const auto bytes = pattern(40 * 1'200 + 77, 1);
    std::vector<IoSlice> slices;
    for (std::size_t at = 0, piece = 1; at < bytes.size(); at += piece, piece = piece * 2 + 1) {
      piece = std::min(piece, bytes.size() - at);
      slices.push_back({bytes.data() + at, piece});
    }
    const TxPacket packet{&end.other[0], 0, slices, bytes.size(), 1'200};
    for (int i = 0; i < 20; ++i) {
      EXPECT_TRUE(end.hear_until([&] { return end.nic->send_st({&packet, 1}) == 1; }));
      EXPECT_TRUE(end.hear_until(41));
      std::vector<std::byte> joined;
      for (const auto& each : end.heard) joined.insert(joined.end(), each.begin(), each.end());
      EXPECT_TRUE(joined == bytes) << "round " << i;
      end.heard.clear();
      fellowship.barrier();
    }
  });
}

// The kernel's runs of datagrams are cut before a native program sees them.
TEST(XdpNicTest, a_host_with_kernel_udp_is_heard_and_hears) {
  XDP_OR_SKIP();
  HOSTS_OR_SKIP(2, 1500);
  between(network, [&](Fellowship& fellowship) {
    const bool is_xdp = fellowship.rank() == 0;
    End end(fellowship, {network.address(fellowship.rank())}, is_xdp ? "xdp" : "udp", 1500);
    end.become_acquainted();
    const auto bytes = pattern(30 * 1'400 + 5, 2);
    for (int i = 0; i < 20; ++i) {
      EXPECT_TRUE(end.send(0, bytes, 1'400));
      EXPECT_TRUE(end.hear_until(31));
      std::vector<std::byte> joined;
      for (const auto& each : end.heard) joined.insert(joined.end(), each.begin(), each.end());
      EXPECT_TRUE(joined == bytes) << "round " << i;
      end.heard.clear();
      fellowship.barrier();
    }
    if (is_xdp) {
      EXPECT_GE(end.counters().received_by_ring, 20u * 31u);
      EXPECT_GT(end.counters().sent_by_ring, 0u);
    }
    fellowship.barrier();
  });
}

// Frames in another ring are heard with the second burst, however many there are in the first.
TEST(XdpNicTest, a_ring_that_fills_every_burst_keeps_no_other_from_being_heard) {
  XDP_OR_SKIP();
  HOSTS_OR_SKIP(2, 1500);
  between(network, [&](Fellowship& fellowship) {
    lay_cable(network, fellowship, 1);
    const bool is_xdp = fellowship.rank() == 0;
    const std::string by_cable = is_xdp ? "10.99.1.1" : "10.99.1.2";
    const std::vector<std::string> own = {network.address(fellowship.rank()), by_cable};
    End end(fellowship, own, is_xdp ? "xdp" : "udp", 1500);
    constexpr std::size_t kMany = 200;
    if (!is_xdp) {
      for (std::size_t i = 0; i < kMany; ++i) EXPECT_TRUE(end.send(0, pattern(100, i)));
      EXPECT_TRUE(end.send(1, pattern(100, kMany)));
    }
    fellowship.barrier();
    if (is_xdp) {
      const std::vector<int> rings = end.rings();
      ASSERT_EQ(rings.size(), 2u);
      for (const int ring : rings) {
        pollfd filled{ring, POLLIN, 0};
        ASSERT_EQ(poll(&filled, 1, 10'000), 1);
      }
      std::array<std::size_t, 2> heard{};
      for (int burst = 0; burst < 2; ++burst) {
        std::array<RxPacket, Nic::kReceiveBurst> packets;
        const std::size_t got = end.nic->receive_st(packets);
        for (std::size_t i = 0; i < got; ++i) ++heard[packets[i].local_path];
      }
      EXPECT_GT(heard[0], 0u);
      EXPECT_EQ(heard[1], 1u);
    }
    fellowship.barrier();
  });
}

// The kernel sends what lies in a ring when it can: here it cannot for a while. Whoever has nothing
// else to do sleeps meanwhile, and wakes to try again.
TEST(XdpNicTest, a_full_ring_lets_its_owner_sleep_until_there_is_room) {
  XDP_OR_SKIP();
  HOSTS_OR_SKIP(2, 1500);
  between(network, [&](Fellowship& fellowship) {
    End end(fellowship, {network.address(fellowship.rank())}, "xdp", 1500);
    end.become_acquainted();
    if (fellowship.rank() == 0) {
      const auto bytes = pattern(1'400, 4);
      const IoSlice slice{bytes.data(), bytes.size()};
      const TxPacket packet{&end.other[0], 0, {&slice, 1}, bytes.size()};
      const auto takes = [&] { return end.nic->send_st({&packet, 1}) == 1; };
      const auto wakes = [&] {
        const bool woken = end.wait(10'000) > 0;
        end.nic->look_everywhere_st();
        return woken;
      };
      // The ring calls 100 us after it was found full, which on a busy machine may be over before
      // it is listened to.
      const auto fills_and_is_quiet = [&] {
        for (int i = 0; i < 1'000; ++i) {
          while (takes()) continue;
          if (end.wait(0) == 0) return true;
          end.nic->look_everywhere_st();
        }
        return false;
      };
      kernel_sends_nothing = true;
      EXPECT_TRUE(takes());
      EXPECT_TRUE(wakes()) << "it was taken, and has not left";
      EXPECT_TRUE(fills_and_is_quiet()) << "there is room at once";
      EXPECT_TRUE(wakes());
      EXPECT_EQ(end.wait(0), 0) << "it was looked at";
      while (takes()) continue;  // what confirms the neighbour goes by the socket
      kernel_sends_nothing = false;
      EXPECT_TRUE(wakes());
      EXPECT_TRUE(takes());
      EXPECT_EQ(end.wait(0), 0) << "what has room calls nobody";
    }
    fellowship.barrier();
  });
}

TEST(XdpNicTest, everything_else_goes_on_to_the_kernel) {
  XDP_OR_SKIP();
  HOSTS_OR_SKIP(2, 1500);
  between(network, [&](Fellowship& fellowship) {
    const int me = fellowship.rank();
    End end(fellowship, {network.address(me)}, "xdp", 1500);
    end.become_acquainted();
    // A socket of the kernel's at another port of the same address.
    End beside(fellowship, {network.address(me)}, "udp", 1500);
    EXPECT_TRUE(beside.send(0, pattern(100, 3)));
    EXPECT_TRUE(beside.hear_until(1));
    // Fragments, which the kernel puts together for the socket beside the ring.
    const auto large = pattern(4'000, 4);
    EXPECT_TRUE(end.send(0, large));
    EXPECT_TRUE(end.hear_until(1));
    EXPECT_EQ(end.heard.front(), large);
    EXPECT_GE(end.counters().received_by_socket, 1u);
    const std::string ping = "ping -c 1 -W 5 " + network.address(1 - me) + " >/dev/null";
    EXPECT_EQ(system(("! command -v ping >/dev/null || " + ping).c_str()), 0);
    fellowship.barrier();
  });
}

TEST(XdpNicTest, rings_are_asked_for_overflows_now_and_then) {
  XDP_OR_SKIP();
  HOSTS_OR_SKIP(2, 1500);
  between(network, [&](Fellowship& fellowship) {
    End end(fellowship, {network.address(fellowship.rank())}, "xdp", 1500);
    const Time began = monotonic_now();
    for (int polls = 0; polls < 10'000; ++polls) EXPECT_EQ(end.nic->overflows(), 0u);
    EXPECT_LE(times_counted, 1 + (monotonic_now() - began) / (50 * kMillisecond));
    fellowship.barrier();
  });
}

MacAddress mac_of(const std::string& interface) {
  ifreq request{};
  memcpy(request.ifr_name, interface.data(), interface.size());
  const OwnFd fd(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(ioctl(fd.get(), SIOCGIFHWADDR, &request), 0) << interface;
  MacAddress mac{};
  memcpy(mac.data(), request.ifr_hwaddr.sa_data, mac.size());
  return mac;
}

// A datagram in a frame to that MAC address.
void send_frame(const Endpoint& from, const Endpoint& to, const MacAddress& mac,
                std::span<const std::byte> datagram) {
  const IoSlice slice{datagram.data(), datagram.size()};
  std::vector<std::byte> frame(udp_headers_bytes(to));
  write_udp_headers({mac_of("eth0"), mac, from, to}, {{&slice, 1}, datagram.size()}, frame);
  frame.insert(frame.end(), datagram.begin(), datagram.end());
  const OwnFd out(socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0));
  sockaddr_ll device{};
  device.sll_family = AF_PACKET;
  device.sll_ifindex = static_cast<int>(if_nametoindex("eth0"));
  EXPECT_EQ(sendto(out.get(), frame.data(), frame.size(), 0,
                   reinterpret_cast<const sockaddr*>(&device), sizeof device),
            static_cast<ssize_t>(frame.size()));
}

// A switch may hand over frames to others, and an interface that hears everybody as well. Those to
// an address that another interface has come by this one's ring, and are ours.
TEST(XdpNicTest, frames_to_another_host_s_mac_address_are_for_others) {
  XDP_OR_SKIP();
  HOSTS_OR_SKIP(2, 1500);
  between(network, [&](Fellowship& fellowship) {
    const int me = fellowship.rank();
    const std::string beside = "10.99.0." + std::to_string(me + 1);
    ASSERT_EQ(system("ip link add link eth0 name m0 type macvlan mode bridge"), 0);
    ASSERT_TRUE(set_up("m0", beside));
    End end(fellowship, {network.address(me), beside}, me == 0 ? "udp" : "xdp", 1500);
    const std::array own{mac_of("eth0"), mac_of("m0")};
    const std::string all(reinterpret_cast<const char*>(&own), sizeof own);
    std::array<MacAddress, 2> theirs;
    memcpy(&theirs, fellowship.all_gather(all)[1].data(), sizeof theirs);
    if (me == 0) {
      constexpr MacAddress kOther{std::byte{2}, {}, {}, {}, {}, std::byte{0x77}};
      const auto from = [&](int path) { return end.nic->addresses()[path].endpoint; };
      send_frame(from(0), end.other[0], kOther, pattern(50, 1));
      send_frame(from(1), end.other[1], kOther, pattern(51, 1));
      send_frame(from(1), end.other[1], theirs[1], pattern(52, 1));
      send_frame(from(0), end.other[0], theirs[0], pattern(53, 1));
    } else {
      EXPECT_TRUE(end.hear_until(2));
      EXPECT_EQ(end.heard, (std::vector{pattern(52, 1), pattern(53, 1)}));
      EXPECT_EQ(end.counters().received_by_ring, 2u);
      EXPECT_EQ(end.counters().for_others, 2u);
    }
    fellowship.barrier();
  });
}

TEST(XdpNicTest, a_closed_port_refuses_what_a_ring_sends) {
  XDP_OR_SKIP();
  HOSTS_OR_SKIP(2, 1500);
  between(network, [&](Fellowship& fellowship) {
    End end(fellowship, {network.address(fellowship.rank())}, "xdp", 1500);
    end.become_acquainted();
    if (fellowship.rank() == 1) end.nic->close_st();
    fellowship.barrier();
    if (fellowship.rank() == 0) {
      std::vector<Refusal> refusals;
      const auto bytes = pattern(64, 5);
      const std::uint64_t by_ring = end.counters().sent_by_ring;
      EXPECT_TRUE(end.hear_until([&] {
        end.send(0, bytes);
        for (Refusal& each : end.nic->take_refusals_st()) refusals.push_back(std::move(each));
        return !refusals.empty();
      }));
      EXPECT_GT(end.counters().sent_by_ring, by_ring);
      ASSERT_FALSE(refusals.empty());
      EXPECT_EQ(refusals.front().destination, end.other[0]);
      EXPECT_TRUE(std::ranges::equal(refusals.front().quoted,
                                     std::span(bytes).first(refusals.front().quoted.size())));
    }
    fellowship.barrier();
  });
}

TEST(XdpNicTest, a_queue_is_one_process_s_and_is_free_again_after_it) {
  XDP_OR_SKIP();
  HOSTS_OR_SKIP(1, 1500);
  const std::string& space = network.namespaces()[0];
  const auto statuses =
      run_processes({2, 60 * kSecond, {space, space}}, [&](Fellowship& fellowship) {
        NicOptions options;
        options.locals = {{ip(network.address(0)), 1500}};
        const auto opened = [&] { return network_named("xdp").value()->open(options); };
        if (fellowship.rank() == 0) {
          auto nic = opened();
          EXPECT_TRUE(nic.ok()) << nic.status().message();
          fellowship.barrier();
          fellowship.barrier();
          nic.value()->close_st();
          fellowship.barrier();
          fellowship.barrier();
          return;
        }
        fellowship.barrier();
        expect_refused(opened().status(), {"TACO_HARP_DRIVER=xdp on eth0: queue 0", "ethtool -L",
                                           "TACO_IFNAME", "TACO_HARP_XDP_QUEUES"});
        fellowship.barrier();
        fellowship.barrier();
        const auto nic = opened();
        EXPECT_TRUE(nic.ok()) << nic.status().message();
        fellowship.barrier();
      });
  EXPECT_EQ(statuses, (std::vector<int>{0, 0}));
}

// The kernel spreads what different ports send.
TEST(XdpNicTest, datagrams_arrive_by_the_rings_of_all_queues) {
  XDP_OR_SKIP();
  HOSTS_OR_SKIP(2, 1500);
  between(network, [&](Fellowship& fellowship) {
    lay_cable(network, fellowship, 3);
    const bool is_xdp = fellowship.rank() == 0;
    const std::vector<std::string> own(16, is_xdp ? "10.99.1.1" : "10.99.1.2");
    End end(fellowship, own, is_xdp ? "xdp" : "udp", 1500);
    if (is_xdp) {
      EXPECT_TRUE(end.hear_until(16 * 8));
      EXPECT_EQ(end.counters().received_by_ring, 16u * 8u);
      EXPECT_EQ(end.counters().received_by_socket, 0u);
    } else {
      for (std::uint32_t i = 0; i < 16 * 8; ++i) EXPECT_TRUE(end.send(i % 16, pattern(100, i)));
    }
    fellowship.barrier();
  });
}

TEST(XdpNicTest, without_the_right_to_load_a_program_the_error_names_it) {
  XDP_OR_SKIP();
  HOSTS_OR_SKIP(1, 1500);
  const auto statuses =
      run_processes({1, 60 * kSecond, {network.namespaces()[0]}}, [&](Fellowship&) {
        ASSERT_EQ(setgid(65'534), 0);
        ASSERT_EQ(setuid(65'534), 0);
        NicOptions options;
        options.locals = {{ip(network.address(0)), 1500}};
        expect_refused(network_named("xdp").value()->open(options).status(),
                       {"TACO_HARP_DRIVER=xdp on eth0", "CAP_BPF", "CAP_NET_ADMIN"});
      });
  EXPECT_EQ(statuses, std::vector<int>{0});
}

}  // namespace
}  // namespace taco::harp
