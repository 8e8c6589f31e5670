// The xdp driver between two hosts, which are network namespaces. Needs root and a kernel with
// AF_XDP; skipped with the reason elsewhere.
#include "harp/drivers/xdp/xdp.h"

#include <errno.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
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

#include "harp/drivers/networks.h"
#include "harp/drivers/xdp/xdp_here.h"
#include "support/ip.h"
#include "support/network.h"
#include "support/processes.h"
#include "support/stack_world.h"

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

namespace taco::harp {
namespace {

using ::taco::testing::Fellowship;
using ::taco::testing::Network;
using ::taco::testing::pattern;
using ::taco::testing::run_processes;

constexpr Duration kLimit = 10 * kSecond;

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

// One end of a conversation: a Nic of one driver, with where the other end is.
struct End {
  End(Fellowship& fellowship, const std::vector<std::string>& own, const char* driver,
      std::size_t mtu)
      : fellowship(fellowship) {
    NicOptions options;
    for (const std::string& each : own) options.locals.push_back({ip(each), mtu});
    auto opened = network_named(driver).value()->open(options);
    EXPECT_TRUE(opened.ok()) << opened.status().message();
    nic = std::move(opened).value();
    std::string addresses;
    for (const NicAddress& each : nic->addresses()) {
      addresses.append(reinterpret_cast<const char*>(&each.endpoint), sizeof each.endpoint);
    }
    const std::string theirs = fellowship.all_gather(addresses)[1 - fellowship.rank()];
    other.resize(theirs.size() / sizeof(Endpoint));
    memcpy(other.data(), theirs.data(), theirs.size());
  }

  const XdpCounters& counters() const { return dynamic_cast<XdpNic&>(*nic).counters(); }

  bool send(std::uint32_t path, std::span<const std::byte> bytes, std::size_t segment = 0) {
    const IoSlice slice{bytes.data(), bytes.size()};
    const TxPacket packet{&other[path], path, {&slice, 1}, bytes.size(), segment};
    for (const Time limit = monotonic_now() + kLimit; monotonic_now() < limit;) {
      if (nic->send_st({&packet, 1}) == 1) return true;
      hear();
    }
    return false;
  }

  // Sleeps on the descriptors as an engine does that has something to send. Returns how many call.
  int wait(int milliseconds) const {
    std::vector<pollfd> all;
    for (const NicDescriptor& each : nic->descriptors()) {
      const bool is_full =
          each.local_path != NicDescriptor::kNoAddress && nic->is_full_st(each.local_path);
      const short events = is_full ? POLLIN | POLLOUT : POLLIN;
      if (each.fd >= 0) all.push_back({each.fd, events, 0});
    }
    return poll(all.data(), all.size(), milliseconds);
  }
  // Sleeps on the descriptors as an engine does, and takes all that is there.
  void hear() {
    std::vector<pollfd> all;
    for (const NicDescriptor& each : nic->descriptors()) {
      if (each.fd >= 0) all.push_back({each.fd, POLLIN, 0});
    }
    poll(all.data(), all.size(), 20);
    nic->look_everywhere_st();
    for (;;) {
      std::array<RxPacket, Nic::kReceiveBurst> packets;
      const std::size_t got = nic->receive_st(packets);
      for (std::size_t i = 0; i < got; ++i) take(packets[i]);
      if (got < packets.size()) return;
    }
  }
  void take(const RxPacket& packet) {
    EXPECT_EQ(port_of(*packet.source), port_of(other[packet.local_path]));
    const std::size_t step = packet.segment_bytes != 0
                                 ? packet.segment_bytes
                                 : std::max<std::size_t>(packet.data.size(), 1);
    std::size_t at = 0;
    do {
      const auto one = packet.data.subspan(at, std::min(step, packet.data.size() - at));
      heard.emplace_back(one.begin(), one.end());
      at += step;
    } while (at < packet.data.size());
  }
  bool hear_until(const std::function<bool()>& done) {
    for (const Time limit = monotonic_now() + kLimit; monotonic_now() < limit; hear()) {
      if (done()) return true;
    }
    return false;
  }
  bool hear_until(std::size_t datagrams) {
    return hear_until([&] { return heard.size() >= datagrams; });
  }

  // Until rings are used, of one end or both: the kernel has found the neighbour.
  void become_acquainted() {
    const std::array<std::byte, 4> greeting{};
    const bool has_rings = dynamic_cast<XdpNic*>(nic.get()) != nullptr;
    for (std::uint32_t path = 0; has_rings && path < other.size(); ++path) {
      EXPECT_TRUE(hear_until([&] {
        const std::uint64_t before = counters().sent_by_ring;
        send(path, greeting);
        return counters().sent_by_ring > before;
      })) << "path "
          << path;
    }
    fellowship.barrier();
    hear();
    fellowship.barrier();
    heard.clear();
  }

  Fellowship& fellowship;
  std::unique_ptr<Nic> nic;
  std::vector<Endpoint> other;
  std::vector<std::vector<std::byte>> heard;
};

// Both ends at once; each sees its own rank.
void between(const Network& network, const std::function<void(Fellowship&)>& body) {
  const auto& spaces = network.namespaces();
  EXPECT_EQ(run_processes({2, 60 * kSecond, {spaces[0], spaces[1]}}, body),
            (std::vector<int>{0, 0}));
}

// An interface that was set up has a carrier soon, not at once.
bool set_up(const std::string& device, const std::string& address) {
  return system(("ip addr add " + address + "/24 dev " + device + " && ip link set " + device +
                 " up && for i in $(seq 200); do ip -o link show dev " + device +
                 " | grep -q 'state UP' && exit 0; sleep 0.05; done; exit 1")
                    .c_str()) == 0;
}

void lay_cable(const Network& network, Fellowship& fellowship, int queues) {
  if (fellowship.rank() == 0) {
    ASSERT_TRUE(network.lay_cable(queues));
  }
  fellowship.barrier();
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
      for (const auto& each : all) EXPECT_TRUE(end.send(path, each));
      EXPECT_TRUE(end.hear_until(all.size()));
      EXPECT_EQ(end.heard, all) << "path " << path;
      EXPECT_LE(end.counters().sent_by_socket, by_sockets + 1) << "the neighbour is confirmed";
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
      kernel_sends_nothing = true;
      EXPECT_TRUE(takes());
      EXPECT_TRUE(wakes()) << "it was taken, and has not left";
      while (takes()) continue;
      EXPECT_EQ(end.wait(0), 0) << "there is room at once";
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
        const std::uint64_t before = end.counters().sent_by_ring;
        EXPECT_TRUE(end.send(0, datagram));
        by_ring = end.counters().sent_by_ring > before;
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

TEST(XdpNicTest, without_the_right_to_load_a_program_the_error_names_it) {
  XDP_OR_SKIP();
  HOSTS_OR_SKIP(1, 1500);
  const auto statuses =
      run_processes({1, 30 * kSecond, {network.namespaces()[0]}}, [&](Fellowship&) {
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
