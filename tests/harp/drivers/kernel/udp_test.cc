#include "harp/drivers/kernel/udp.h"

#include <errno.h>
#include <sys/syscall.h>

#include <cstring>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "harp/drivers/kernel/udp_fixture.h"
#include "support/refused_call.h"

namespace taco::harp {
namespace {

class UdpTest : public ::testing::TestWithParam<bool> {};

TEST_P(UdpTest, datagrams_arrive_whole_with_their_source) {
  auto a = nic(options(GetParam())), b = nic(options(GetParam()));
  const auto payload = random_bytes(777);
  const std::array<IoSlice, 2> slices = {{{payload.data(), 32}, {payload.data() + 32, 745}}};
  const TxPacket packet{&b->addresses()[0].endpoint, 0, slices, 777};
  ASSERT_EQ(a->send_st({&packet, 1}), 1u);
  pollfd wait{b->descriptors()[0].fd, POLLIN, 0};
  ASSERT_EQ(poll(&wait, 1, 5'000), 1);
  std::array<RxPacket, 4> packets;
  ASSERT_EQ(b->receive_st(packets), 1u);
  EXPECT_EQ(packets[0].segment_bytes, 0u);
  ASSERT_EQ(packets[0].data.size(), 777u);
  EXPECT_EQ(std::memcmp(packets[0].data.data(), payload.data(), 777), 0);
  EXPECT_TRUE(same_host_address(*packets[0].source, a->addresses()[0].endpoint));
  EXPECT_EQ(port_of(*packets[0].source), port_of(a->addresses()[0].endpoint));
}

// Short ones go by other system calls than long ones, and whoever asks for one gets one.
TEST_P(UdpTest, one_datagram_at_a_time_is_like_many_at_once) {
  auto a = nic(options(GetParam())), b = nic(options(GetParam()));
  const auto payload = random_bytes(1'200);
  for (const std::size_t bytes : {1u, 40u, 511u, 512u, 513u, 1'200u}) {
    const std::size_t front = bytes / 3;
    const std::array<IoSlice, 2> slices = {
        {{payload.data(), front}, {payload.data() + front, bytes - front}}};
    const TxPacket packet{&b->addresses()[0].endpoint, 0, slices, bytes};
    ASSERT_EQ(a->send_st({&packet, 1}), 1u);
    ASSERT_EQ(a->send_st({&packet, 1}), 1u);
    std::array<RxPacket, 1> one;
    for (int arrived = 0; arrived < 2; ++arrived) {
      pollfd wait{b->descriptors()[0].fd, POLLIN, 0};
      ASSERT_EQ(poll(&wait, 1, 5'000), 1);
      ASSERT_EQ(b->receive_st(one), 1u);
      EXPECT_EQ(one[0].segment_bytes, 0u);
      ASSERT_EQ(one[0].data.size(), bytes);
      EXPECT_EQ(std::memcmp(one[0].data.data(), payload.data(), bytes), 0);
      EXPECT_EQ(port_of(*one[0].source), port_of(a->addresses()[0].endpoint));
    }
    EXPECT_EQ(b->receive_st(one), 0u);
  }
}

// Runs on a thread that stands in a network of its own, whose loopback carries 1,500 bytes.
void check_unfragmented(bool v6) {
  auto a = nic(options(v6)), b = nic(options(v6));
  const std::size_t whole = max_datagram(b->addresses()[0].endpoint, 1'500);
  const auto payload = random_bytes(whole + 1);
  const auto send = [&](std::size_t bytes, bool unfragmented) {
    const IoSlice slice{payload.data(), bytes};
    TxPacket packet{&b->addresses()[0].endpoint, 0, {&slice, 1}, bytes};
    packet.unfragmented = unfragmented;
    ASSERT_EQ(a->send_st({&packet, 1}), 1u);
  };
  send(whole + 1, true);
  send(whole, true);
  send(whole + 1, false);
  const auto arrived = collect(*b, 2, nullptr);
  ASSERT_EQ(arrived.size(), 2u);
  EXPECT_EQ(arrived[0].size(), whole);
  EXPECT_EQ(arrived[1].size(), whole + 1);
  EXPECT_FALSE(a->is_full_st(0));
  pollfd idle{a->descriptors()[0].fd, POLLIN, 0};
  EXPECT_EQ(poll(&idle, 1, 0), 0) << "what was too large has left an error that nobody takes";
}

TEST_P(UdpTest, an_unfragmented_datagram_arrives_whole_or_not_at_all) {
  if (!in_a_network("ip link set lo up mtu 1500", [&] { check_unfragmented(GetParam()); }))
    GTEST_SKIP() << "no right to make a network namespace";
}

// Where a network refuses what is sent to a port: the error waits on the sender's socket.
constexpr std::uint16_t kUnreachable = 9, kProhibited = 10;
const char* const kRefusals =
    "ip link set lo up && nft -f - <<END\n"
    "table inet refusals {\nchain arriving {\n"
    "type filter hook input priority 0;\n"
    "meta nfproto ipv4 udp dport 9 reject with icmp type host-unreachable\n"
    "meta nfproto ipv6 udp dport 9 reject with icmpv6 type addr-unreachable\n"
    "meta nfproto ipv4 udp dport 10 reject with icmp type net-prohibited\n"
    "meta nfproto ipv6 udp dport 10 reject with icmpv6 type admin-prohibited\n"
    "}\n}\nEND";

Endpoint refusing(bool v6, std::uint16_t port) {
  Endpoint endpoint = loopback(v6);
  set_port(endpoint, port);
  return endpoint;
}

// Each packet to the live one is sent right after one that was refused.
void check_others_errors(bool v6) {
  auto a = nic(options(v6)), live = nic(options(v6));
  const auto payload = random_bytes(44 * 1'200);
  const IoSlice slice{payload.data(), 200}, long_slice{payload.data(), payload.size()};
  constexpr std::size_t kRounds = 20, kSegments = 44;
  for (const std::uint16_t port : {kUnreachable, kProhibited}) {
    const Endpoint refuses = refusing(v6, port);
    const TxPacket refused{&refuses, 0, {&slice, 1}, 200};
    TxPacket packet{&live->addresses()[0].endpoint, 0, {&slice, 1}, 200};
    for (std::size_t i = 0; i < kRounds; ++i) {
      ASSERT_EQ(a->send_st({&refused, 1}), 1u);
      packet.unfragmented = i % 2 == 1;
      ASSERT_EQ(a->send_st({&packet, 1}), 1u);
    }
    EXPECT_EQ(collect(*live, kRounds, nullptr).size(), kRounds) << "port " << port;
    ASSERT_EQ(a->send_st({&refused, 1}), 1u);
    const TxPacket run{&live->addresses()[0].endpoint, 0, {&long_slice, 1}, payload.size(), 1'200};
    ASSERT_EQ(a->send_st({&run, 1}), 1u);
    std::size_t largest_run = 0;
    EXPECT_EQ(collect(*live, kSegments, &largest_run).size(), kSegments) << "port " << port;
    EXPECT_EQ(largest_run, kSegments) << "a run was cut for an error that was not its own";
  }
  EXPECT_TRUE(a->take_refusals_st().empty()) << "an unreachable host says nothing about a process";
  EXPECT_FALSE(a->is_full_st(0));
}

// The kernel counts a waiting error as received data: when there is no room for that, the socket
// has an error of which its queue of errors knows nothing.
void check_errors_without_a_message(bool v6) {
  UdpNicOptions small = options(v6);
  small.receive_buffer = 8'192;
  auto a = nic(small), live = nic(options(v6));
  const auto payload = random_bytes(1'400);
  const IoSlice slice{payload.data(), payload.size()};
  const TxPacket filling{&a->addresses()[0].endpoint, 0, {&slice, 1}, payload.size()};
  for (int i = 0; i < 100; ++i) ASSERT_EQ(live->send_st({&filling, 1}), 1u);
  const Endpoint refuses = refusing(v6, kUnreachable);
  const TxPacket refused{&refuses, 0, {&slice, 1}, payload.size()};
  const TxPacket packet{&live->addresses()[0].endpoint, 0, {&slice, 1}, payload.size()};
  for (int i = 0; i < 20; ++i) {
    ASSERT_EQ(a->send_st({&refused, 1}), 1u);
    ASSERT_EQ(a->send_st({&packet, 1}), 1u);
  }
  EXPECT_EQ(collect(*live, 20, nullptr).size(), 20u);
}

// No route: the kernel says so at every try, and that packet alone is lost.
void check_own_errors() {
  auto a = nic(options()), live = nic(options());
  Endpoint nowhere = live->addresses()[0].endpoint;
  inet_pton(AF_INET, "203.0.113.9", nowhere.bytes.data() + offsetof(sockaddr_in, sin_addr));
  const auto payload = random_bytes(44 * 1'200);
  const IoSlice slice{payload.data(), 200}, long_slice{payload.data(), payload.size()};
  const TxPacket lost{&nowhere, 0, {&slice, 1}, 200};
  const TxPacket lost_run{&nowhere, 0, {&long_slice, 1}, payload.size(), 1'200};
  const TxPacket packet{&live->addresses()[0].endpoint, 0, {&slice, 1}, 200};
  const std::array<TxPacket, 6> packets{packet, lost, packet, lost_run, packet, lost};
  ASSERT_EQ(a->send_st(packets), packets.size());
  EXPECT_EQ(collect(*live, 3, nullptr).size(), 3u);
  EXPECT_FALSE(a->is_full_st(0));
}

// A route that says it carries little, as any ICMP message can have it say.
void check_route_of_little(bool v6) {
  auto a = nic(options(v6)), b = nic(options(v6));
  constexpr std::size_t kSegments = 44;
  const auto payload = random_bytes(kSegments * 1'200);
  const IoSlice slice{payload.data(), payload.size()};
  const TxPacket run{&b->addresses()[0].endpoint, 0, {&slice, 1}, payload.size(), 1'200};
  for (const bool probed : {false, true}) {
    TxPacket probe{&b->addresses()[0].endpoint, 0, {&slice, 1}, 1'400};
    const IoSlice short_slice{payload.data(), 1'400};
    probe.slices = {&short_slice, 1};
    probe.unfragmented = true;
    if (probed) {
      ASSERT_EQ(a->send_st({&probe, 1}), 1u);
      EXPECT_EQ(collect(*b, 1, nullptr).size(), 1u);
    }
    ASSERT_EQ(a->send_st({&run, 1}), 1u);
    std::size_t largest_run = 0;
    EXPECT_EQ(collect(*b, kSegments, &largest_run).size(), kSegments);
    EXPECT_EQ(largest_run, kSegments) << "sent in pieces";
  }
}

TEST_P(UdpTest, what_a_route_is_said_to_carry_is_not_believed) {
  const char* const commands =
      "ip link set lo up && ip route replace table local local 127.0.0.1 dev lo mtu lock 600 && "
      "ip -6 route replace table local local ::1 dev lo mtu lock 1280";
  if (!in_a_network(commands, [&] { check_route_of_little(GetParam()); }))
    GTEST_SKIP() << "no right to make a network namespace";
}

TEST_P(UdpTest, an_unreachable_peer_costs_a_live_one_nothing) {
  if (!in_a_network(kRefusals, [&] { check_others_errors(GetParam()); }))
    GTEST_SKIP() << "no right to make a network namespace, or no nft";
}

TEST_P(UdpTest, an_error_that_left_no_message_costs_a_live_peer_nothing) {
  if (!in_a_network(kRefusals, [&] { check_errors_without_a_message(GetParam()); }))
    GTEST_SKIP() << "no right to make a network namespace, or no nft";
}

TEST(UdpErrorTest, what_has_no_route_is_lost_alone) {
  if (!in_a_network("ip link set lo up", check_own_errors))
    GTEST_SKIP() << "no right to make a network namespace";
}

INSTANTIATE_TEST_SUITE_P(Families, UdpTest, ::testing::Bool(),
                         [](const auto& instance) { return instance.param ? "ipv6" : "ipv4"; });

// A run of 40 segments with headers of their own, gathered from two memories.
void check_run(bool gso, bool gro) {
  UdpNicOptions sender = options(), receiver = options();
  sender.allow_gso = gso;
  receiver.allow_gro = gro;
  auto a = nic(sender), b = nic(receiver);
  EXPECT_EQ(a->capabilities().gso_segments > 1, gso);
  constexpr std::size_t kSegments = 40, kHeader = 32, kPayload = 1'440, kLast = 100;
  const auto headers = random_bytes(kSegments * kHeader);
  const auto payload = random_bytes(kSegments * kPayload);
  std::vector<IoSlice> slices;
  std::vector<std::string> expected;
  std::size_t total = 0;
  for (std::size_t i = 0; i < kSegments; ++i) {
    const std::size_t length = i + 1 == kSegments ? kLast : kPayload;
    slices.push_back({headers.data() + i * kHeader, kHeader});
    slices.push_back({payload.data() + i * kPayload, length});
    expected.emplace_back(reinterpret_cast<const char*>(headers.data()) + i * kHeader, kHeader);
    expected.back().append(reinterpret_cast<const char*>(payload.data()) + i * kPayload, length);
    total += kHeader + length;
  }
  const TxPacket packet{&b->addresses()[0].endpoint, 0, slices, total, kHeader + kPayload, true};
  ASSERT_EQ(a->send_st({&packet, 1}), 1u);
  std::size_t largest_run = 0;
  EXPECT_EQ(collect(*b, kSegments, &largest_run), expected);
  // Only both together keep the run in one piece; loopback does not merge single datagrams.
  EXPECT_EQ(largest_run > 1, gso && gro);
}

TEST(UdpRunTest, a_run_crosses_as_one_super_packet) { check_run(true, true); }
TEST(UdpRunTest, a_receiver_without_gro_gets_the_same_datagrams) { check_run(true, false); }
TEST(UdpRunTest, a_sender_without_gso_sends_the_same_datagrams) { check_run(false, true); }

TEST(UdpErrorTest, a_closed_port_is_reported_with_the_packet_and_live_peers_are_still_reached) {
  auto a = nic(options()), live = nic(options());
  Endpoint dead;
  {
    auto closing = nic(options());
    dead = closing->addresses()[0].endpoint;
  }
  const auto payload = random_bytes(200);
  const IoSlice slice{payload.data(), payload.size()};
  const TxPacket to_dead{&dead, 0, {&slice, 1}, 200};
  const TxPacket to_live{&live->addresses()[0].endpoint, 0, {&slice, 1}, 200};
  constexpr int kRounds = 20;
  std::size_t refusals = 0;
  for (int i = 0; i < kRounds; ++i) {
    ASSERT_EQ(a->send_st({&to_dead, 1}), 1u);
    ASSERT_EQ(a->send_st({&to_live, 1}), 1u) << i;
    std::array<RxPacket, 1> none;
    a->receive_st(none);
    for (const Refusal& refusal : a->take_refusals_st()) {
      ++refusals;
      EXPECT_TRUE(refusal.destination == dead) << to_string(refusal.destination);
      ASSERT_EQ(refusal.quoted.size(), 200u);
      EXPECT_EQ(std::memcmp(refusal.quoted.data(), payload.data(), 200), 0);
    }
  }
  EXPECT_GE(refusals, 3u);  // loopback answers all; the limit elsewhere is 6 at once
  EXPECT_EQ(collect(*live, kRounds, nullptr).size(), static_cast<std::size_t>(kRounds));
}

// Whether packets are taken on a thread whose every send fails with that; none: no seccomp here.
std::optional<bool> takes_what_fails_with(unsigned error) {
  std::optional<bool> taken;
  std::thread([&] {
    for (const auto call : {SYS_sendto, SYS_sendmsg, SYS_sendmmsg}) {
      if (!testing::refuse_call(static_cast<unsigned>(call), error)) return;
    }
    auto a = nic(options()), b = nic(options());
    const auto payload = random_bytes(2'400);
    std::size_t count = 0;
    for (const std::size_t bytes : {100u, 1'200u, 2'400u}) {
      const IoSlice slice{payload.data(), bytes};
      TxPacket packet{&b->addresses()[0].endpoint, 0, {&slice, 1}, bytes};
      if (bytes == payload.size()) packet.segment_bytes = bytes / 2;
      count += a->send_st({&packet, 1});
      EXPECT_EQ(a->is_full_st(0), error == EAGAIN) << bytes;
    }
    EXPECT_TRUE(count == 0 || count == 3) << count;
    taken = count > 0;
  }).join();
  return taken;
}

// Where a queue behind the socket has no room, fragments may have left all the same, and datagrams
// of a run: their numbers are not to be had again. A full socket has let nothing go.
TEST(UdpErrorTest, what_may_have_left_is_taken) {
  const std::optional<bool> full = takes_what_fails_with(EAGAIN);
  if (!full) GTEST_SKIP() << "no seccomp here";
  EXPECT_EQ(full, false);
  EXPECT_EQ(takes_what_fails_with(ENOBUFS), true);
  EXPECT_EQ(takes_what_fails_with(ENOMEM), true);
}

// Errors can be forged, by anybody who guesses a port: a flood of them is not all listened to, and
// when it is over, the next ones are heard.
TEST(UdpErrorTest, of_a_flood_of_errors_a_few_are_heard_at_a_time) {
  auto a = nic(options());
  Endpoint dead;
  {
    auto closing = nic(options());
    dead = closing->addresses()[0].endpoint;
  }
  const auto payload = random_bytes(200);
  const IoSlice slice{payload.data(), payload.size()};
  const TxPacket packet{&dead, 0, {&slice, 1}, 200};
  std::size_t heard = 0;
  const auto send_one = [&] {
    ASSERT_EQ(a->send_st({&packet, 1}), 1u);
    std::array<RxPacket, 1> none;
    a->look_everywhere_st();
    a->receive_st(none);
    heard += a->take_refusals_st().size();
  };
  const Time begin = monotonic_now();
  constexpr std::size_t kFlood = 20'000;
  for (std::size_t i = 0; i < kFlood; ++i) send_one();
  const auto periods = static_cast<std::size_t>((monotonic_now() - begin) / (10 * kMillisecond));
  EXPECT_LE(heard, 128 * (periods + 1));
  EXPECT_GT(heard, 3u);
  const Time deadline = monotonic_now() + 10 * kSecond;
  const std::size_t before = heard;
  while (heard == before && monotonic_now() < deadline) send_one();
  EXPECT_GT(heard, before);
}

TEST(UdpErrorTest, datagrams_that_find_the_buffer_full_are_counted) {
  UdpNicOptions small = options();
  small.receive_buffer = 8'192;
  auto a = nic(options()), b = nic(small);
  EXPECT_LT(b->capabilities().receive_buffer, a->capabilities().receive_buffer);
  const auto payload = random_bytes(1'400);
  const IoSlice slice{payload.data(), payload.size()};
  const TxPacket packet{&b->addresses()[0].endpoint, 0, {&slice, 1}, payload.size()};
  for (int i = 0; i < 200; ++i) ASSERT_EQ(a->send_st({&packet, 1}), 1u);
  std::array<RxPacket, 16> packets;
  while (b->receive_st(packets) > 0) {
  }
  // The count travels with the next datagram that is taken in.
  ASSERT_EQ(a->send_st({&packet, 1}), 1u);
  EXPECT_EQ(collect(*b, 1, nullptr).size(), 1u);
  EXPECT_GT(b->overflows(), 0u);
  EXPECT_EQ(a->overflows(), 0u);
}

TEST(UdpErrorTest, an_address_that_is_not_ours_is_a_clear_error) {
  UdpNicOptions elsewhere = options();
  inet_pton(AF_INET, "203.0.113.9",
            elsewhere.locals[0].address.bytes.data() + offsetof(sockaddr_in, sin_addr));
  const auto made = UdpNic::create(elsewhere);
  ASSERT_FALSE(made.ok());
  EXPECT_NE(made.status().message().find("203.0.113.9"), std::string::npos);
}

TEST(UdpPathsTest, a_silent_socket_is_still_heard) {
  UdpNicOptions two = options();
  two.locals.push_back(two.locals[0]);
  auto a = nic(options()), b = nic(two);
  std::array<RxPacket, 4> packets;
  for (int i = 0; i < 2'000; ++i) b->receive_st(packets);
  const IoSlice slice{"hello", 5};
  const TxPacket packet{&b->addresses()[1].endpoint, 0, {&slice, 1}, 5};
  ASSERT_EQ(a->send_st({&packet, 1}), 1u);
  std::size_t got = 0;
  const Time limit = monotonic_now() + 5 * kSecond;
  while (got == 0 && monotonic_now() < limit) got = b->receive_st(packets);
  ASSERT_EQ(got, 1u);
  EXPECT_EQ(packets[0].local_path, 1u);
}

// Each of three sockets has more waiting than a burst holds, and the first more than the others.
TEST(UdpPathsTest, a_flooded_socket_leaves_the_others_their_turns) {
  UdpNicOptions three = options();
  three.locals.resize(3, three.locals[0]);
  auto a = nic(options()), b = nic(three);
  const IoSlice slice{"hello", 5};
  const std::array<std::size_t, 3> waiting = {64, 9, 9};
  for (std::uint32_t path = 0; path < 3; ++path) {
    const TxPacket packet{&b->addresses()[path].endpoint, 0, {&slice, 1}, 5};
    for (std::size_t i = 0; i < waiting[path]; ++i) ASSERT_EQ(a->send_st({&packet, 1}), 1u);
  }
  std::array<RxPacket, UdpReceiveRing::kPackets> packets;
  std::array<std::size_t, 3> got{};
  for (int burst = 0; burst < 6; ++burst) {
    b->look_everywhere_st();
    const std::size_t count = b->receive_st(packets);
    ASSERT_EQ(count, packets.size()) << "burst " << burst;
    for (const RxPacket& packet : packets) ++got[packet.local_path];
  }
  EXPECT_EQ(got[1], 9u);
  EXPECT_EQ(got[2], 9u);
}

}  // namespace
}  // namespace taco::harp
