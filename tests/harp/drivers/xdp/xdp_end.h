// Two hosts of one network, each with a Nic, for tests of the xdp driver. Test support.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "harp/drivers/networks.h"
#include "harp/drivers/xdp/xdp.h"
#include "harp/drivers/xdp/xdp_here.h"
#include "support/ip.h"
#include "support/network.h"
#include "support/processes.h"
#include "support/stack_world.h"

namespace taco::harp {

inline constexpr Duration kXdpLimit = 10 * kSecond;

// One end of a conversation: a Nic of one driver, with where the other end is.
struct End {
  End(testing::Fellowship& fellowship, const std::vector<std::string>& own, const char* driver,
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
    for (const Time limit = monotonic_now() + kXdpLimit; monotonic_now() < limit;) {
      if (nic->send_st({&packet, 1}) == 1) return true;
      hear();
    }
    return false;
  }

  // The same; true if it went by a ring.
  bool goes_by_ring(std::uint32_t path, std::span<const std::byte> bytes) {
    const std::uint64_t before = counters().sent_by_ring;
    EXPECT_TRUE(send(path, bytes));
    return counters().sent_by_ring > before;
  }

  // Those of the descriptors that are rings.
  std::vector<int> rings() const {
    std::vector<int> found;
    for (const NicDescriptor& each : nic->descriptors()) {
      int domain = 0;
      socklen_t length = sizeof domain;
      if (each.fd < 0 || getsockopt(each.fd, SOL_SOCKET, SO_DOMAIN, &domain, &length) != 0)
        continue;
      if (domain == AF_XDP) found.push_back(each.fd);
    }
    return found;
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
    for (const Time limit = monotonic_now() + kXdpLimit; monotonic_now() < limit; hear()) {
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
      EXPECT_TRUE(hear_until([&] { return goes_by_ring(path, greeting); })) << "path " << path;
    }
    fellowship.barrier();
    hear();
    fellowship.barrier();
    heard.clear();
  }

  testing::Fellowship& fellowship;
  std::unique_ptr<Nic> nic;
  std::vector<Endpoint> other;
  std::vector<std::vector<std::byte>> heard;
};

// Both ends at once; each sees its own rank.
inline void between(const testing::Network& network,
                    const std::function<void(testing::Fellowship&)>& body) {
  const auto& spaces = network.namespaces();
  EXPECT_EQ(testing::run_processes({2, 60 * kSecond, {spaces[0], spaces[1]}}, body),
            (std::vector<int>{0, 0}));
}

// An interface that was set up has a carrier soon, not at once.
inline bool set_up(const std::string& device, const std::string& address) {
  return system(("ip addr add " + address + "/24 dev " + device + " && ip link set " + device +
                 " up && for i in $(seq 200); do ip -o link show dev " + device +
                 " | grep -q 'state UP' && exit 0; sleep 0.05; done; exit 1")
                    .c_str()) == 0;
}

inline void lay_cable(const testing::Network& network, testing::Fellowship& fellowship,
                      int queues) {
  if (fellowship.rank() == 0) {
    ASSERT_TRUE(network.lay_cable(queues));
  }
  fellowship.barrier();
}

}  // namespace taco::harp
