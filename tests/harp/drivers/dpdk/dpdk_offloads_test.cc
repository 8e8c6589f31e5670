// Devices of hardware do what DPDK's software devices do not, which DPDK's own calls put in place
// here: they take tags of VLANs out of frames, and prepare frames before these leave. EAL starts
// once a process, so each case has a process of its own.
#include <errno.h>
#include <gtest/gtest.h>
#include <rte_ethdev.h>
#include <string.h>
#include <unistd.h>

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "harp/drivers/dpdk/dpdk_network.h"
#include "support/dpdk_world.h"
#include "support/ip.h"
#include "support/network.h"
#include "support/processes.h"

namespace taco::harp {
namespace {

using ::taco::testing::counters_of;
using ::taco::testing::Fellowship;
using ::taco::testing::kDpdkDeadline;
using ::taco::testing::pattern;
using ::taco::testing::run_processes;

constexpr const char* kRing = "net_ring0 10.5.0.1/24 10.5.0.2/24";

std::unique_ptr<Nic> open_nic(const std::string& devices) {
  const DpdkNetwork network(parse_dpdk_devices(devices).value(), "");
  NicOptions options;
  const auto interfaces = network.interfaces();
  EXPECT_TRUE(interfaces.ok()) << interfaces.status().message();
  for (const Interface& each : interfaces.value()) options.locals.push_back({each.address, 1500});
  return network.open(options).value();
}

bool send(Nic& nic, const Endpoint& to, const std::vector<std::byte>& datagram) {
  const IoSlice slice{datagram.data(), datagram.size()};
  TxPacket packet;
  packet.destination = &to;
  packet.slices = {&slice, 1};
  packet.bytes = datagram.size();
  return nic.send_st({&packet, 1}) == 1;
}

// The next datagram; none comes in a hundred looks: empty.
std::vector<std::byte> receive(Nic& nic) {
  std::array<RxPacket, 1> packet;
  for (int look = 0; look < 100; ++look) {
    if (nic.receive_st(packet) == 1) return {packet[0].data.begin(), packet[0].data.end()};
  }
  return {};
}

// As a device does whose tags are `tci`.
struct Tags {
  std::uint64_t flags;
  std::uint16_t tci, outer_tci;
};
std::uint16_t mark(std::uint16_t, std::uint16_t, rte_mbuf** frames, std::uint16_t count,
                   std::uint16_t, void* tags) {
  const Tags& taken_out = *static_cast<const Tags*>(tags);
  for (std::uint16_t i = 0; i < count; ++i) {
    frames[i]->ol_flags |= taken_out.flags;
    frames[i]->vlan_tci = taken_out.tci;
    frames[i]->vlan_tci_outer = taken_out.outer_tci;
  }
  return count;
}

TEST(DpdkOffloadsTest, a_frame_whose_tag_the_device_took_out_is_for_others) {
  DPDK_OR_SKIP();
  const auto statuses = run_processes({1, kDpdkDeadline, {}}, [&](Fellowship&) {
    const auto nic = open_nic(kRing);
    const Endpoint to = nic->addresses().back().endpoint;
    const auto bytes = pattern(300, 1);
    ASSERT_TRUE(send(*nic, to, bytes)) << "it waits for the neighbour's address";
    ASSERT_EQ(receive(*nic), bytes);
    Tags tags{};
    std::uint16_t port = 0;
    ASSERT_EQ(rte_eth_dev_get_port_by_name("net_ring0", &port), 0);
    ASSERT_NE(rte_eth_add_rx_callback(port, 0, mark, &tags), nullptr);
    constexpr std::uint64_t kOne = RTE_MBUF_F_RX_VLAN | RTE_MBUF_F_RX_VLAN_STRIPPED;
    constexpr std::uint64_t kTwo = kOne | RTE_MBUF_F_RX_QINQ | RTE_MBUF_F_RX_QINQ_STRIPPED;
    const struct {
      Tags tags;
      bool arrives;
    } cases[] = {
        {{kOne, 5, 0}, false},      {{kOne, 0x6000, 0}, true}, {{kTwo, 0, 5}, false},
        {{kTwo, 0x6005, 0}, false}, {{kTwo, 0x6000, 0}, true}, {{0, 5, 5}, true},
    };
    for (const auto& each : cases) {
      tags = each.tags;
      ASSERT_TRUE(send(*nic, to, bytes));
      EXPECT_EQ(receive(*nic) == bytes, each.arrives)
          << each.tags.flags << " " << each.tags.tci << " " << each.tags.outer_tci;
    }
  });
  EXPECT_EQ(statuses, std::vector<int>{0});
}

int prepared = 0;
bool refuses = false;

std::uint16_t count_prepared(void*, rte_mbuf** frames, std::uint16_t count) {
  for (std::uint16_t i = 0; i < count; ++i) {
    if (refuses && (frames[i]->ol_flags & RTE_MBUF_F_TX_UDP_CKSUM) != 0) return i;
    prepared += (frames[i]->ol_flags & RTE_MBUF_F_TX_UDP_CKSUM) != 0 ? 1 : 0;
  }
  return count;
}

// Drivers of several NICs compute a part of the checksum themselves, when frames are prepared.
TEST(DpdkOffloadsTest, frames_whose_checksum_is_the_device_s_are_prepared_before_they_leave) {
  DPDK_OR_SKIP();
  if (access("/dev/net/tun", R_OK | W_OK) != 0) GTEST_SKIP() << "/dev/net/tun: " << strerror(errno);
  HOSTS_OR_SKIP(1);
  const std::string devices = "net_tap0,iface=tap7 10.6.0.1/24";
  const std::vector<std::string> spaces{network.namespaces()[0]};
  const auto statuses = run_processes({1, kDpdkDeadline, spaces}, [&](Fellowship&) {
    const auto nic = open_nic(devices);
    std::uint16_t port = 0;
    ASSERT_EQ(rte_eth_dev_get_port_by_name("net_tap0", &port), 0);
    ASSERT_TRUE(network.run_in(0, "ip addr add 10.6.0.2/24 dev tap7"));
    ASSERT_TRUE(network.run_in(0, "ip link set tap7 up"));
    rte_eth_fp_ops[port].tx_pkt_prepare = count_prepared;
    const auto bytes = pattern(300, 1);
    const Endpoint to = ip("10.6.0.2", 9);
    const Time limit = monotonic_now() + 10 * kSecond;
    while (prepared == 0 && monotonic_now() < limit) {
      ASSERT_TRUE(send(*nic, to, bytes));
      receive(*nic);
    }
    EXPECT_GT(prepared, 0);
    refuses = true;
    const FramePortCounters before = counters_of(devices);
    const std::vector<TxPacket> packets = [&] {
      static const IoSlice slice{bytes.data(), bytes.size()};
      TxPacket packet;
      packet.destination = &to;
      packet.slices = {&slice, 1};
      packet.bytes = bytes.size();
      return std::vector<TxPacket>(40, packet);
    }();
    EXPECT_EQ(nic->send_st(packets), packets.size()) << "what the device refuses is lost";
    EXPECT_EQ(counters_of(devices).damaged - before.damaged, packets.size());
    EXPECT_EQ(counters_of(devices).frames_sent, before.frames_sent);
  });
  EXPECT_EQ(statuses, std::vector<int>{0});
}

}  // namespace
}  // namespace taco::harp
