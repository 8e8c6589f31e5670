// The simulated network does to packets what it says.
#include "support/sim_network.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <vector>

namespace taco::harp {
namespace {

// A host that sends datagrams of nothing in particular, and counts what comes.
struct Host {
  explicit Host(SimNetwork& network, const SimNicOptions& options = {}) : nic(network, options) {}

  // How many of `count` datagrams from the Nic's address `path` were taken.
  std::size_t send(std::uint32_t path, const Endpoint& to, std::size_t bytes, int count = 1) {
    const std::vector<std::byte> payload(bytes);
    const IoSlice slice{payload.data(), bytes};
    const TxPacket packet{&to, path, {&slice, 1}, bytes};
    std::size_t taken = 0;
    for (int i = 0; i < count; ++i) taken += nic.send_st({&packet, 1});
    return taken;
  }
  // By local path, the datagrams that have come since the last call.
  std::vector<std::size_t> received() {
    std::vector<std::size_t> counts(nic.addresses().size());
    std::array<RxPacket, 8> packets;
    while (const std::size_t count = nic.receive_st(packets)) {
      for (std::size_t i = 0; i < count; ++i) {
        const RxPacket& packet = packets[i];
        const std::size_t step =
            packet.segment_bytes != 0 ? packet.segment_bytes : packet.data.size();
        counts[packet.local_path] += (packet.data.size() + step - 1) / step;
      }
    }
    return counts;
  }
  const Endpoint& at(std::size_t path) const { return nic.addresses()[path].endpoint; }

  SimNic nic;
};

using Counts = std::vector<std::size_t>;

// Nothing goes wrong by chance; a cable carries a megabyte a second.
SimFaults slow() {
  SimFaults faults;
  faults.bytes_per_second = 1e6;
  faults.longest_queue = 10 * kMillisecond;
  faults.receive_buffer = 1 << 20;
  return faults;
}

TEST(SimNetwork, EachAddressHasACableOfItsOwnWhichFillsAndEmpties) {
  SimNetwork network(1, slow());
  const SimNicOptions two{.max_datagrams = {1472, 1472}};
  Host a(network, two), b(network, two);
  // 10 ms of the cable, and the one that finds no more than that before it.
  EXPECT_EQ(a.send(0, b.at(0), 1000, 20), 11u);
  EXPECT_TRUE(a.nic.is_full_st(0));
  EXPECT_FALSE(a.nic.is_full_st(1));
  EXPECT_EQ(a.send(1, b.at(1), 1000, 5), 5u);
  network.advance(6 * kMillisecond);
  EXPECT_EQ(b.received(), (Counts{5, 5}));
  EXPECT_EQ(a.send(0, b.at(0), 1000), 1u);
  EXPECT_FALSE(a.nic.is_full_st(0));
  network.advance(kSecond);
  EXPECT_EQ(b.received(), (Counts{7, 0}));
}

TEST(SimNetwork, AddressesTakeWhatTheySayAndLinksWhatTheyAreToldTo) {
  SimNetwork network(1, slow());
  const SimNicOptions wide_and_narrow{.max_datagrams = {8972, 1472}};
  Host a(network, wide_and_narrow), b(network, wide_and_narrow);
  EXPECT_EQ(a.nic.addresses()[0].max_datagram, 8972u);
  EXPECT_EQ(a.nic.addresses()[1].max_datagram, 1472u);
  for (const std::uint32_t path : {0u, 1u}) {
    a.send(path, b.at(path), 1472);
    a.send(path, b.at(path), 1473);
  }
  network.advance(kSecond);
  EXPECT_EQ(b.received(), (Counts{2, 1}));
  network.set_mtu(0, 1, 1400, 0);
  for (const std::uint32_t path : {0u, 1u}) a.send(path, b.at(path), 1472);
  network.advance(2 * kSecond);
  EXPECT_EQ(b.received(), (Counts{0, 1}));
  EXPECT_EQ(network.counts().too_large, 2u);
}

TEST(SimNetwork, AnAddressReachesItsLikeOnlyUnlessTheNetworksAreOne) {
  for (const bool rails : {true, false}) {
    SimFaults faults = slow();
    faults.rails = rails;
    SimNetwork network(1, faults);
    const SimNicOptions two{.max_datagrams = {1472, 1472}};
    Host a(network, two), b(network, two);
    a.send(0, b.at(1), 100);
    network.advance(kSecond);
    EXPECT_EQ(b.received(), (Counts{0, rails ? 0u : 1u}));
  }
}

TEST(SimNetwork, PortsOfOneAddressShareItsCableAndMayDieAlone) {
  SimNetwork network(1, slow());
  const SimNicOptions two_ports{.max_datagrams = {1472}, .ports = 2};
  Host a(network, two_ports), b(network, two_ports);
  network.kill_link(0, 1, kNever, SimNetwork::kEvery, 1);
  a.send(0, b.at(0), 1000, 5);
  a.send(1, b.at(0), 1000, 5);
  EXPECT_EQ(b.send(1, a.at(1), 1000, 3), 3u);
  EXPECT_EQ(a.send(0, b.at(1), 1000, 5), 1u) << "the other port's packets are before it";
  network.advance(kSecond);
  EXPECT_EQ(b.received(), (Counts{5, 1}));
  EXPECT_EQ(a.received(), (Counts{0, 3})) << "the way back lives";
  EXPECT_EQ(network.counts().link_dead, 5u);
}

TEST(SimNetwork, TheSwitchQueuesWhatManySendToOneAndDropsWhatIsTooMuch) {
  SimFaults faults = slow();
  faults.port_bytes_per_second = 1e6;
  faults.port_queue = 20'000;
  SimNetwork network(1, faults);
  Host a(network), b(network), c(network), sink(network);
  const auto flood = [&](Host& from, std::uint32_t path, int count) {
    from.send(path, sink.at(path), 1000, count);
  };
  // Two cables into one: half of it waits, and fits.
  flood(a, 0, 10);
  flood(b, 0, 10);
  flood(c, 1, 10);
  network.advance(12 * kMillisecond);
  EXPECT_EQ(sink.received()[0], 10u);
  network.advance(100 * kMillisecond);
  EXPECT_EQ(network.counts().port_full, 0u);
  EXPECT_EQ(network.counts().delivered, 30u);
  // Three into one, for as long: 10 ms of the third have no place.
  network.faults().port_queue = 10'000;
  for (Host* from : {&a, &b, &c}) flood(*from, 0, 10);
  network.advance(kSecond);
  EXPECT_NEAR(static_cast<double>(network.counts().port_full), 10, 2);
  EXPECT_EQ(network.counts().delivered + network.counts().port_full, 60u);
}

TEST(SimNetwork, APortThatNobodyHasRefuses) {
  SimNetwork network(1, {});
  Host a(network), b(network);
  const Endpoint nowhere = SimNetwork::endpoint(1, 0, 1);
  a.send(0, b.at(0), 100);
  a.send(0, nowhere, 1000);
  network.advance(kSecond);
  std::vector<Refusal> refusals = a.nic.take_refusals_st();
  ASSERT_EQ(refusals.size(), 1u);
  EXPECT_EQ(refusals[0].destination, nowhere);
  EXPECT_LT(refusals[0].quoted.size(), 1000u);
  EXPECT_TRUE(a.nic.take_refusals_st().empty());
  b.nic.close_st();
  a.send(0, b.at(0), 100);
  network.advance(2 * kSecond);
  refusals = a.nic.take_refusals_st();
  ASSERT_EQ(refusals.size(), 1u);
  EXPECT_EQ(refusals[0].destination, b.at(0));
  EXPECT_EQ(network.counts().delivered, 1u);
}

TEST(SimNetwork, ABurstTakesPacketsThatFollowEachOther) {
  SimFaults faults = slow();
  faults.burst = 0.02;
  faults.longest_burst = 8;
  SimNetwork network(1, faults);
  Host a(network), b(network);
  std::string fates;
  network.set_tap(
      [&](const SimNetwork::Departure& sent) { fates += sent.fate.empty() ? '.' : 'x'; });
  for (int i = 0; i < 1000; ++i) {
    ASSERT_EQ(a.send(0, b.at(0), 100), 1u);
    network.advance(network.now() + kMillisecond);
  }
  network.advance(network.now() + kSecond);
  const SimCounts& counts = network.counts();
  EXPECT_GE(counts.bursts, 5u);
  EXPECT_GE(counts.burst_lost, 3 * counts.bursts);
  EXPECT_EQ(b.received()[0], 1000 - counts.burst_lost);
  EXPECT_NE(fates.find("xxx"), std::string::npos);
  EXPECT_EQ(static_cast<std::uint64_t>(std::count(fates.begin(), fates.end(), 'x')),
            counts.burst_lost);
}

TEST(SimNetwork, APacketMayBeOvertakenByAThousand) {
  SimFaults faults;
  faults.reordering = 0.01;
  faults.reorder_delay = kSecond;
  faults.receive_buffer = 64 << 20;
  faults.longest_queue = kSecond;
  SimNetwork network(1, faults);
  Host a(network), b(network);
  ASSERT_EQ(a.send(0, b.at(0), 100, 5000), 5000u);
  network.advance(3 * kSecond);
  EXPECT_EQ(network.counts().delivered, 5000u);
  EXPECT_GE(network.counts().reordered, 20u);
  EXPECT_GE(network.counts().far_reordered, 10u);
  EXPECT_LE(network.counts().far_reordered, network.counts().reordered);
}

TEST(SimNetwork, WhoeverHasNoPartInItMaySendFromAnyAddress) {
  SimNetwork network(1, {});
  Host a(network), b(network);
  std::vector<std::string> fates;
  network.set_tap([&](const SimNetwork::Departure& sent) { fates.push_back(sent.fate); });
  network.forge({0, 0, 0}, {1, 0, 0}, std::vector<std::byte>(10));
  network.forge({9, 1, 2}, {1, 0, 0}, std::vector<std::byte>(20));
  network.advance(kSecond);
  std::array<RxPacket, 8> packets;
  ASSERT_EQ(b.nic.receive_st(packets), 2u);
  EXPECT_EQ(*packets[0].source, SimNetwork::endpoint(0, 0, 0));
  EXPECT_EQ(*packets[1].source, SimNetwork::endpoint(9, 1, 2));
  EXPECT_EQ(fates, (std::vector<std::string>{"forged", "forged"}));
  EXPECT_EQ(network.counts().forged, 2u);
}

TEST(SimNetwork, AHostMayTakeAnothersPlace) {
  SimNetwork network(1, {});
  Host a(network);
  auto b = std::make_unique<Host>(network);
  const Endpoint place = b->at(0);
  b->nic.close_st();
  a.send(0, place, 100);
  network.advance(kSecond);
  EXPECT_EQ(a.nic.take_refusals_st().size(), 1u);
  Host successor(network, {.node = 1});
  b.reset();
  EXPECT_EQ(successor.at(0), place);
  a.send(0, place, 100);
  network.advance(2 * kSecond);
  EXPECT_EQ(successor.received()[0], 1u);
}

TEST(SimNetwork, HardwareReadsPayloadLaterAndGivesItBack) {
  SimFaults faults;
  faults.asynchronous_return = true;
  SimNetwork network(1, faults);
  Host a(network), b(network);
  std::array<std::byte, 32> header{}, payload{};
  const std::array<IoSlice, 2> slices{{{header.data(), 32}, {payload.data(), 32}}};
  TxReference reference, recalled;
  TxPacket packet{&b.at(0), 0, slices, 64, 64, true, &reference};
  ASSERT_EQ(a.nic.send_st({&packet, 1}), 1u);
  packet.reference = &recalled;
  ASSERT_EQ(a.nic.send_st({&packet, 1}), 1u);
  EXPECT_EQ(reference.count, 1u);
  a.nic.recall_st(recalled);
  EXPECT_EQ(recalled.count, 0u);
  payload[5] = std::byte{7};
  network.advance(kSecond);
  EXPECT_EQ(reference.count, 1u) << "it was read, and is not reaped";
  a.nic.reap_st();
  EXPECT_EQ(reference.count, 0u);
  std::array<RxPacket, 8> packets;
  ASSERT_EQ(b.nic.receive_st(packets), 1u);
  ASSERT_EQ(packets[0].data.size(), 128u);
  EXPECT_EQ(packets[0].data[32 + 5], std::byte{0}) << "recalled before it was overwritten";
  EXPECT_EQ(packets[0].data[64 + 32 + 5], std::byte{7});
}

}  // namespace
}  // namespace taco::harp
