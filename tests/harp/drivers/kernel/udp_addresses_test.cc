// Addresses and interfaces that come, go and change under the udp driver.
#include <linux/if_ether.h>
#include <netpacket/packet.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <utility>

#include "harp/drivers/kernel/kernel_interfaces.h"
#include "harp/drivers/kernel/udp_fixture.h"
#include "support/eventually.h"
#include "support/ip.h"

namespace taco::harp {
namespace {

// Runs on a thread that stands in a network of its own, in which 10.9.9.1 is near's.
void check_missing_addresses() {
  UdpNicOptions two = options();
  sockaddr_in own{};
  own.sin_family = AF_INET;
  own.sin_addr.s_addr = htonl(0x0a090901);
  two.locals.push_back({endpoint_of(reinterpret_cast<const sockaddr*>(&own)), 1500});
  auto a = nic(two);
  EXPECT_EQ(a->missing_st(), 0u);
  // As its owner does, who sleeps until there is something to look at. The kernel tells of one
  // command in several messages, a carrier's a moment after the others.
  const auto after = [&](const char* command, std::uint32_t expected) {
    EXPECT_EQ(system(command), 0) << command;
    std::vector<pollfd> wait;
    for (const NicDescriptor& each : a->descriptors()) wait.push_back({each.fd, POLLIN, 0});
    EXPECT_GE(poll(wait.data(), wait.size(), 5'000), 1) << "nobody tells of: " << command;
    std::array<RxPacket, 4> packets;
    const auto look = [&] {
      a->look_everywhere_st();
      EXPECT_EQ(a->receive_st(packets), 0u);
      return poll(wait.data(), wait.size(), 0) == 0 && a->missing_st() == expected;
    };
    EXPECT_TRUE(testing::eventually(look))
        << command << ": missing are " << a->missing_st() << ", not " << expected
        << ", or whoever sleeps on the descriptor would not sleep any more";
  };
  after("ip address del 10.9.9.1/24 dev near", 2);
  after("ip address add 10.9.9.2/24 dev near", 2);
  after("ip address add 10.9.9.1/24 dev near", 0);
  after("ip link set near down", 2);
  after("ip link set near up", 0);
  after("ip link del near", 2);
}

TEST(UdpPathsTest, an_address_that_goes_or_comes_back_is_noticed) {
  if (!in_a_network(
          "ip link set lo up && ip link add near type veth peer name far && ip link set far up && "
          "ip address add 10.9.9.1/24 dev near && ip link set near up",
          check_missing_addresses))
    GTEST_SKIP() << "no right to make a network namespace";
}

// In a network in which near and far are the ends of one cable.
UdpNicOptions with_near() {
  UdpNicOptions growing = options();
  growing.find_more = [] {
    std::vector<NicOptions::Local> found;
    const auto all = list_interfaces();
    EXPECT_TRUE(all.ok());
    for (const Interface& each : all.value()) {
      const bool v4 = sockaddr_of(each.address)->sa_family == AF_INET;
      if (each.up && v4 && each.name == "near") found.push_back({each.address, 9000});
    }
    return found;
  };
  return growing;
}

void check_new_addresses() {
  UdpNicOptions growing = with_near();
  auto a = nic(growing);
  const std::size_t descriptors = a->descriptors().size();
  std::array<RxPacket, 4> packets;
  a->receive_st(packets);
  EXPECT_EQ(a->addresses().size(), 1u);
  EXPECT_EQ(system("ip address add 10.9.9.1/24 dev near"), 0);
  ASSERT_TRUE(testing::eventually([&] {
    a->look_everywhere_st();
    a->receive_st(packets);
    return a->addresses().size() == 2;
  }));
  EXPECT_EQ(to_string(a->addresses()[1].endpoint).substr(0, 9), "10.9.9.1:");
  EXPECT_EQ(a->addresses()[1].max_datagram, 8972u);
  EXPECT_EQ(a->missing_st(), 0u);
  ASSERT_EQ(a->descriptors().size(), descriptors + 1);
  EXPECT_EQ(a->descriptors().back().local_path, 1u);

  const IoSlice slice{"hello", 5};
  const TxPacket packet{&a->addresses()[1].endpoint, 0, {&slice, 1}, 5};
  const auto far = [&] {
    UdpNicOptions there = options();
    there.locals[0].address = growing.find_more()[0].address;
    return nic(there);
  }();
  ASSERT_EQ(far->send_st({&packet, 1}), 1u);
  pollfd wait{a->descriptors().back().fd, POLLIN, 0};
  EXPECT_EQ(poll(&wait, 1, 5'000), 1) << "who sleeps on the descriptors would not hear of it";
  a->look_everywhere_st();
  ASSERT_EQ(a->receive_st(packets), 1u);
  EXPECT_EQ(packets[0].local_path, 1u);

  EXPECT_EQ(system("ip address del 10.9.9.1/24 dev near"), 0);
  EXPECT_TRUE(testing::eventually([&] {
    a->look_everywhere_st();
    a->receive_st(packets);
    return a->missing_st() == 2;
  }));
  EXPECT_EQ(a->addresses().size(), 2u);
}

TEST(UdpPathsTest, an_address_that_comes_is_opened) {
  if (!in_a_network(
          "ip link set lo up && ip link add near type veth peer name far && ip link set far up && "
          "ip link set near up",
          check_new_addresses))
    GTEST_SKIP() << "no right to make a network namespace";
}

// A lease that is renewed with another address for the hundredth time.
void check_renewed_addresses() {
  UdpNicOptions growing = with_near();
  growing.locals.resize(23, growing.locals.front());
  auto a = nic(growing);
  std::array<RxPacket, 4> packets;
  std::uint64_t arrivals = a->arrivals_st();
  for (const char* host : {"10.9.9.1", "10.9.9.2", "10.9.9.3", "10.9.9.1"}) {
    const std::string add = std::string("ip address add ") + host + "/24 dev near";
    EXPECT_EQ(system(("ip address flush dev near && " + add).c_str()), 0);
    ASSERT_TRUE(testing::eventually([&] {
      a->look_everywhere_st();
      a->receive_st(packets);
      return to_string(a->addresses().back().endpoint).starts_with(std::string(host) + ":");
    })) << host;
    ASSERT_EQ(a->addresses().size(), 24u);
    EXPECT_EQ(a->missing_st(), 0u);
    EXPECT_GT(a->arrivals_st(), std::exchange(arrivals, a->arrivals_st()));
    EXPECT_EQ(a->descriptors().back().local_path, 23u);
  }
  const IoSlice slice{"hello", 5};
  const TxPacket packet{&a->addresses()[23].endpoint, 23, {&slice, 1}, 5};
  ASSERT_EQ(a->send_st({&packet, 1}), 1u);
  pollfd wait{a->descriptors().back().fd, POLLIN, 0};
  EXPECT_EQ(poll(&wait, 1, 5'000), 1) << "who sleeps on the descriptors would not hear of it";
}

TEST(UdpPathsTest, an_address_that_comes_takes_the_place_of_one_that_is_gone_once_all_are_taken) {
  if (!in_a_network(
          "ip link set lo up && ip link add near type veth peer name far && ip link set far up && "
          "ip link set near up",
          check_renewed_addresses))
    GTEST_SKIP() << "no right to make a network namespace";
}

// How many frames have come by some interface with a datagram to that port.
std::size_t frames_to(int capture, std::uint16_t port, int patience_ms = 200) {
  std::size_t count = 0;
  for (pollfd more{capture, POLLIN, 0}; poll(&more, 1, patience_ms) == 1;) {
    std::array<unsigned char, 2'048> bytes;
    sockaddr_ll from{};
    socklen_t size = sizeof from;
    const ssize_t got =
        recvfrom(capture, bytes.data(), bytes.size(), 0, reinterpret_cast<sockaddr*>(&from), &size);
    const bool arrived = got > 28 && from.sll_pkttype != PACKET_OUTGOING && bytes[9] == IPPROTO_UDP;
    const bool begins = ((bytes[6] & 0x1f) << 8 | bytes[7]) == 0;  // no later fragment
    if (arrived && begins && (bytes[22] << 8 | bytes[23]) == port) ++count;
  }
  return count;
}

const char* const kMakeInterface =
    "ip link add v0 type veth peer name p0 && ip link set p0 address 02:00:00:00:00:77 up && "
    "ip addr add 10.9.2.1/24 dev v0 && ip link set v0 up && "
    "ip neigh add 10.9.2.2 lladdr 02:00:00:00:00:77 dev v0";

std::vector<NicOptions::Local> locals_by_now() {
  std::vector<NicOptions::Local> locals;
  const auto all = list_interfaces();
  EXPECT_TRUE(all.ok());
  for (const Interface& each : all.value()) {
    if (each.name != "v0" || sockaddr_of(each.address)->sa_family != AF_INET) continue;
    locals.push_back({.address = each.address, .network = each.network});
  }
  return locals;
}

void check_interface_made_again() {
  const int capture = socket(AF_PACKET, SOCK_DGRAM, htons(ETH_P_IP));
  UdpNicOptions options;
  options.locals = locals_by_now();
  options.find_more = locals_by_now;
  ASSERT_EQ(options.locals.size(), 1u);
  ASSERT_NE(options.locals[0].network.interface, 0u);
  auto a = nic(options);
  Endpoint neighbour = options.locals[0].address;
  inet_pton(AF_INET, "10.9.2.2", neighbour.bytes.data() + offsetof(sockaddr_in, sin_addr));
  set_port(neighbour, 7'777);
  const auto payload = random_bytes(100);
  const IoSlice slice{payload.data(), payload.size()};
  const TxPacket packet{&neighbour, 0, {&slice, 1}, payload.size()};
  ASSERT_EQ(a->send_st({&packet, 1}), 1u);
  EXPECT_EQ(frames_to(capture, 7'777), 1u);
  ASSERT_EQ(system((std::string("ip link del v0 && ") + kMakeInterface).c_str()), 0);
  std::array<RxPacket, 1> none;
  EXPECT_TRUE(testing::eventually([&] {
    a->look_everywhere_st();
    EXPECT_EQ(a->receive_st(none), 0u);
    EXPECT_EQ(a->send_st({&packet, 1}), 1u);
    return frames_to(capture, 7'777) > 0;
  })) << "packets name the index of an interface that is gone";
  close(capture);
}

void check_another_mtu() {
  UdpNicOptions options;
  options.locals = locals_by_now();
  options.find_more = [] {
    std::vector<NicOptions::Local> locals = locals_by_now();
    const auto all = list_interfaces();
    for (NicOptions::Local& each : locals) each.mtu = holder_of(all.value(), each.address)->mtu;
    return locals;
  };
  ASSERT_EQ(options.locals.size(), 1u);
  auto a = nic(options);
  EXPECT_EQ(a->addresses()[0].max_datagram, 1'472u);
  ASSERT_EQ(system("ip link set v0 mtu 1300"), 0);
  std::array<RxPacket, 1> none;
  EXPECT_TRUE(testing::eventually([&] {
    a->look_everywhere_st();
    EXPECT_EQ(a->receive_st(none), 0u);
    return a->addresses()[0].max_datagram == 1'272u;
  })) << "new sessions send more than leaves without fragmentation";
  EXPECT_EQ(a->addresses()[0].whole_datagram, 0u);
  ASSERT_EQ(system("ip link set v0 mtu 1000"), 0);
  EXPECT_TRUE(testing::eventually([&] {
    a->look_everywhere_st();
    EXPECT_EQ(a->receive_st(none), 0u);
    return a->addresses()[0].whole_datagram == 972u;
  })) << "no run of segments fits";
}

// Containers come and go: their interfaces have no address that is anybody's way.
void check_interfaces_of_others() {
  UdpNicOptions own = options();
  std::atomic<int> looks{0};
  own.find_more = [&] {
    ++looks;
    return std::vector<NicOptions::Local>();
  };
  auto a = nic(own);
  std::array<RxPacket, 1> none;
  const auto look = [&] {
    a->look_everywhere_st();
    EXPECT_EQ(a->receive_st(none), 0u);
  };
  look();
  for (int i = 0; i < 5; ++i) {
    ASSERT_EQ(system("ip link add c0 type veth peer name c1 && ip link set c0 up && "
                     "ip link set c1 up && ip link del c0"),
              0);
    look();
  }
  EXPECT_EQ(looks, 0);
  ASSERT_EQ(system("ip address add 10.9.9.1/24 dev lo"), 0);
  EXPECT_TRUE(testing::eventually([&] {
    look();
    return looks > 0;
  }));
}

bool comes_to_miss(UdpNic& nic, std::uint32_t expected) {
  std::array<RxPacket, 1> none;
  return testing::eventually([&] {
    nic.look_everywhere_st();
    EXPECT_EQ(nic.receive_st(none), 0u);
    return nic.missing_st() == expected;
  });
}

// Any word that begins like the interface's name may be the label of its only address.
void check_address_with_a_label() {
  UdpNicOptions options;
  options.locals = {{.address = ip("10.9.2.1")}};
  auto a = nic(options);
  ASSERT_TRUE(comes_to_miss(*a, 0));
  ASSERT_EQ(system("ip link set v0 down"), 0);
  EXPECT_TRUE(comes_to_miss(*a, 1)) << "it is down, and nobody has noticed";
}

TEST(UdpInterfaceTest, one_whose_address_has_a_label_is_watched) {
  const std::string commands = std::string(kMakeInterface) +
                               " && ip addr del 10.9.2.1/24 dev v0 && "
                               "ip addr add 10.9.2.1/24 dev v0 label v0vip";
  if (!in_a_network(commands.c_str(), check_address_with_a_label))
    GTEST_SKIP() << "no right to make a network namespace";
}

// Its kernel tells that it is deleted: from the bridge.
void check_interface_that_left_a_bridge() {
  UdpNicOptions options;
  options.locals = locals_by_now();
  ASSERT_EQ(options.locals.size(), 1u);
  auto a = nic(options);
  ASSERT_EQ(system("ip link add br0 type bridge && ip link set v0 master br0"), 0);
  ASSERT_EQ(system("ip link set v0 nomaster"), 0);
  ASSERT_TRUE(comes_to_miss(*a, 0));
  ASSERT_EQ(system("ip link set v0 down"), 0);
  EXPECT_TRUE(comes_to_miss(*a, 1)) << "it is down, and nobody has noticed";
  ASSERT_EQ(system("ip link set v0 up"), 0);
  EXPECT_TRUE(comes_to_miss(*a, 0));
}

TEST(UdpInterfaceTest, one_that_left_a_bridge_is_still_watched) {
  if (!in_a_network(kMakeInterface, check_interface_that_left_a_bridge))
    GTEST_SKIP() << "no right to make a network namespace";
}

// An interface that carries less than a segment, behind a short queue: runs leave in fragments, one
// after the other as there is room for whole ones.
void check_runs_in_fragments() {
  const int capture = socket(AF_PACKET, SOCK_DGRAM, htons(ETH_P_IP));
  const int room = 64 << 20;
  ASSERT_EQ(setsockopt(capture, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof room), 0);
  UdpNicOptions options;
  options.locals = locals_by_now();
  ASSERT_EQ(options.locals.size(), 1u);
  auto a = nic(options);
  Endpoint neighbour = options.locals[0].address;
  inet_pton(AF_INET, "10.9.2.2", neighbour.bytes.data() + offsetof(sockaddr_in, sin_addr));
  set_port(neighbour, 7'777);
  constexpr std::size_t kSegments = 44, kBytes = 1'200, kRuns = 40;
  const auto payload = random_bytes(kSegments * kBytes);
  const IoSlice slice{payload.data(), payload.size()};
  const TxPacket run{&neighbour, 0, {&slice, 1}, payload.size(), kBytes};
  std::size_t whole = 0, refused = 0;
  for (std::size_t taken = 0; taken < kRuns;) {
    if (a->send_st({&run, 1}) == 1) {
      ++taken;
      continue;
    }
    ASSERT_TRUE(a->is_full_st(0));
    ++refused;
    pollfd writable{a->descriptors()[0].fd, POLLOUT, 0};
    ASSERT_EQ(poll(&writable, 1, 10'000), 1);
    whole += frames_to(capture, 7'777, 0);
  }
  whole += frames_to(capture, 7'777, 500);
  EXPECT_GT(refused, 0u) << "there was room for everything, which shows nothing";
  EXPECT_EQ(whole, kRuns * kSegments);
  close(capture);
}

TEST(UdpInterfaceTest, a_run_that_leaves_in_fragments_leaves_whole) {
  const std::string commands = std::string(kMakeInterface) +
                               " && ip link set v0 mtu 600 && "
                               "tc qdisc add dev v0 root tbf rate 100mbit burst 10kb limit 10mb";
  if (!in_a_network(commands.c_str(), check_runs_in_fragments))
    GTEST_SKIP() << "no right to make a network namespace, or no tc";
}

TEST(UdpInterfaceTest, interfaces_of_others_come_and_go_unheeded) {
  if (!in_a_network("ip link set lo up", check_interfaces_of_others))
    GTEST_SKIP() << "no right to make a network namespace";
}

TEST(UdpInterfaceTest, another_mtu_is_noticed) {
  if (!in_a_network(kMakeInterface, check_another_mtu))
    GTEST_SKIP() << "no right to make a network namespace";
}

TEST(UdpInterfaceTest, an_interface_that_is_made_again_is_used_again) {
  if (!in_a_network(kMakeInterface, check_interface_made_again))
    GTEST_SKIP() << "no right to make a network namespace";
}

}  // namespace
}  // namespace taco::harp
