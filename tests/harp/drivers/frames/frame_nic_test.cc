#include "harp/drivers/frames/frame_nic.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

#include "harp/drivers/frames/ethernet.h"
#include "harp/drivers/frames/internet_checksum.h"
#include "support/frame_cable.h"
#include "support/ip.h"

namespace taco::harp {
namespace {

Time test_now = kSecond;

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// A host at one end of the cable.
struct Host {
  Host(FrameCable& cable, int side, const std::string& address, int prefix,
       const std::string& gateway = "", bool needs_checksums = false) {
    FrameLink link;
    link.name = cable.ends[side]->info().name;
    link.addresses = {{ip(address), prefix}};
    if (!gateway.empty()) link.gateways = {ip(gateway)};
    link.port = cable.ends[side];
    FrameNicOptions options;
    options.locals = {{ip(address), 1500}};
    options.clock = [] { return test_now; };
    options.needs_checksums = needs_checksums;
    auto made = FrameNic::create(options, {link});
    EXPECT_TRUE(made.ok()) << made.status().message();
    nic = std::move(made).value();
    at = nic->addresses()[0].endpoint;
  }

  std::size_t send(const Endpoint& to, const std::string& text) {
    const IoSlice slices[] = {{text.data(), 1}, {text.data() + 1, text.size() - 1}};
    TxPacket packet;
    packet.destination = &to;
    packet.slices = slices;
    packet.bytes = text.size();
    return nic->send_st({&packet, 1});
  }
  // The datagrams of one look, one behind the other.
  std::vector<std::string> receive() {
    std::array<RxPacket, Nic::kReceiveBurst> packets;
    const std::size_t count = nic->receive_st(packets);
    std::vector<std::string> texts;
    for (const RxPacket& packet : std::span(packets).first(count)) {
      texts.push_back(text_of(packet.data));
      from = *packet.source;
    }
    return texts;
  }

  std::unique_ptr<FrameNic> nic;
  Endpoint at, from;
};

using Texts = std::vector<std::string>;

TEST(FrameNicTest, a_datagram_waits_for_the_neighbours_answer_and_arrives) {
  for (const auto& [left, right] : {std::pair("10.0.0.1", "10.0.0.2"), {"fd00::1", "fd00::2"}}) {
    FrameCable cable;
    Host a(cable, 0, left, 24), b(cable, 1, right, 24);
    EXPECT_EQ(a.send(b.at, "hello"), 1u);
    EXPECT_TRUE(cable.on_the_way_to(1).empty());
    a.receive();  // asks
    EXPECT_EQ(b.receive(), Texts{}) << "a question";
    EXPECT_EQ(a.receive(), Texts{}) << "the answer, upon which the datagram leaves";
    EXPECT_EQ(b.receive(), Texts{"hello"});
    EXPECT_EQ(b.from, a.at);
    // It has been told of the other by the question.
    EXPECT_EQ(b.send(a.at, "welcome"), 1u);
    EXPECT_EQ(a.receive(), Texts{"welcome"});
    EXPECT_EQ(a.nic->drops_st(), FrameDrops{});
  }
}

TEST(FrameNicTest, few_datagrams_wait_and_not_for_ever) {
  FrameCable cable;
  Host a(cable, 0, "10.0.0.1", 24);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(a.send(ip("10.0.0.7", 9), "anybody?"), 1u);
  EXPECT_EQ(a.nic->drops_st().no_neighbour, 12u);
  test_now += 2 * kSecond;
  a.receive();
  EXPECT_EQ(a.nic->drops_st().no_neighbour, 20u);
}

TEST(FrameNicTest, a_datagram_that_finds_no_slot_when_the_answer_comes_is_counted) {
  FrameCable cable;
  Host a(cable, 0, "10.0.0.1", 24), b(cable, 1, "10.0.0.2", 24);
  EXPECT_EQ(a.send(b.at, "hello"), 1u);
  a.receive();
  b.receive();
  cable.slots = 0;
  a.receive();
  EXPECT_EQ(a.nic->drops_st().ring_full, 1u);
  EXPECT_EQ(a.nic->drops_st().no_neighbour, 0u);
}

TEST(FrameNicTest, what_is_on_no_network_of_ours_goes_to_the_router_or_nowhere) {
  FrameCable cable;
  Host a(cable, 0, "10.0.0.1", 24, "10.0.0.2"), router(cable, 1, "10.0.0.2", 24);
  EXPECT_EQ(a.send(ip("192.0.2.9", 77), "far away"), 1u);
  a.receive();
  router.receive();
  a.receive();
  ASSERT_EQ(cable.on_the_way_to(1).size(), 1u);
  const auto ethernet = parse_ethernet(cable.on_the_way_to(1).front());
  ASSERT_TRUE(ethernet.has_value());
  EXPECT_EQ(ethernet->destination, cable.ends[1]->info().mac);
  EXPECT_EQ(router.send(ip("192.0.2.9", 77), "far away"), 1u);
  EXPECT_EQ(router.nic->drops_st().no_route, 1u);
}

// A question of a host at `sender` to all its neighbours, in as many bytes as Ethernet carries at
// least.
FrameCable::Bytes question(std::byte last_of_mac, const std::string& sender,
                           const std::string& subject) {
  FrameCable::Bytes frame(kMaxNeighbourFrame);
  write_solicitation({std::byte{2}, {}, {}, {}, {}, last_of_mac}, ip(sender), ip(subject), frame);
  return frame;
}

std::byte last_of_destination(const FrameCable::Bytes& frame) { return frame.at(5); }

// RFC 826 has a host learn from every question whose sender it knows, whatever it is about: by one
// about itself a host says that it has another MAC address now, as a router that takes over from
// another does.
TEST(FrameNicTest, a_neighbour_that_asks_about_itself_is_sent_to_where_it_is_now) {
  FrameCable cable;
  Host a(cable, 0, "10.0.0.1", 24, "10.0.0.254");
  constexpr std::byte kBefore{0x54}, kNow{0x99}, kStranger{0x66};
  const auto leaves_to = [&] {
    cable.on_the_way_to(1).clear();
    EXPECT_EQ(a.send(ip("192.0.2.9", 77), "far away"), 1u);
    return last_of_destination(cable.on_the_way_to(1).at(0));
  };
  cable.put(0, question(kBefore, "10.0.0.254", "10.0.0.1"));
  a.receive();
  EXPECT_EQ(leaves_to(), kBefore);
  for (const char* subject : {"10.0.0.254", "10.0.0.77"}) {
    cable.put(0, question(kNow, "10.0.0.254", subject));
    a.receive();
    EXPECT_EQ(leaves_to(), kNow) << "it has asked about " << subject;
    cable.put(0, question(kBefore, "10.0.0.254", "10.0.0.1"));
    a.receive();
  }
  cable.put(0, question(kStranger, "10.0.0.7", "10.0.0.7"));
  cable.on_the_way_to(1).clear();
  a.receive();
  EXPECT_EQ(a.send(ip("10.0.0.7", 9), "who are you?"), 1u);
  EXPECT_TRUE(cable.on_the_way_to(1).empty()) << "whom nobody has asked about is not kept";
}

TEST(FrameNicTest, what_waits_for_a_neighbour_leaves_when_it_asks_about_itself) {
  FrameCable cable;
  Host a(cable, 0, "10.0.0.1", 24);
  EXPECT_EQ(a.send(ip("10.0.0.7", 9), "anybody?"), 1u);
  cable.put(0, question(std::byte{7}, "10.0.0.7", "10.0.0.7"));
  a.receive();
  ASSERT_FALSE(cable.on_the_way_to(1).empty());
  EXPECT_EQ(last_of_destination(cable.on_the_way_to(1).front()), std::byte{7});
}

// Without a socket of the kernel's the address would be taken for one that it does not have.
TEST(FrameNicTest, a_lack_of_descriptors_is_an_error_that_names_the_limit) {
  FrameCable cable;
  FrameLink link;
  link.addresses = {{ip("127.0.0.1"), 8}};
  link.port = cable.ends[0];
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const int next = dup(STDOUT_FILENO);
  close(next);
  const rlimit none_left{static_cast<rlim_t>(next), before.rlim_max};
  for (const std::uint16_t port : {0, 7777}) {
    FrameNicOptions options;
    options.locals = {{ip("127.0.0.1", port), 1500}};
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none_left), 0);
    const Status status = FrameNic::create(options, {link}).status();
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
    EXPECT_EQ(status.code(), Code::kResource);
    EXPECT_NE(status.message().find("127.0.0.1"), std::string::npos) << status.message();
    EXPECT_NE(status.message().find("ulimit -n"), std::string::npos) << status.message();
  }
}

// An idle engine asks at each poll, and a device may have to be asked through its registers.
TEST(FrameNicTest, overflows_are_asked_for_now_and_then) {
  FrameCable cable;
  Host a(cable, 0, "10.0.0.1", 24);
  const int before = cable.ends[0]->times_counted;
  for (int polls = 0; polls < 1'000; ++polls) EXPECT_EQ(a.nic->overflows(), 0u);
  EXPECT_LE(cable.ends[0]->times_counted, before + 1);
  cable.ends[0]->add_overflow();
  test_now += 100 * kMillisecond;
  EXPECT_EQ(a.nic->overflows(), 1u);
}

// Two hosts that know each other already.
struct Pair {
  Pair() : a(cable, 0, "10.0.0.1", 24), b(cable, 1, "10.0.0.2", 24) {
    a.send(b.at, "hello");
    a.receive();
    b.receive();
    a.receive();
    b.receive();
  }
  FrameCable cable;
  Host a, b;
};

TEST(FrameNicTest, a_full_ring_takes_no_more_and_says_so_until_there_is_room) {
  Pair pair;
  pair.cable.slots = 3;
  const std::string text = "one of many";
  const IoSlice slice{text.data(), text.size()};
  TxPacket packet;
  packet.destination = &pair.b.at;
  packet.slices = {&slice, 1};
  packet.bytes = text.size();
  const std::vector<TxPacket> packets(40, packet);
  EXPECT_EQ(pair.a.nic->send_st(packets), 3u);
  EXPECT_TRUE(pair.a.nic->is_full_st(0));
  EXPECT_EQ(pair.b.receive(), Texts(3, text));
  EXPECT_EQ(pair.a.nic->send_st({packets.data(), 2}), 2u);
  EXPECT_FALSE(pair.a.nic->is_full_st(0));
}

TEST(FrameNicTest, a_link_that_goes_down_is_missed_and_takes_everything_that_is_sent) {
  Pair pair;
  EXPECT_EQ(pair.a.nic->missing_st(), 0u);
  pair.cable.is_up = false;
  test_now += kSecond;
  pair.a.receive();
  EXPECT_EQ(pair.a.nic->missing_st(), 1u);
  EXPECT_EQ(pair.a.send(pair.b.at, "lost"), 1u);
  EXPECT_EQ(pair.a.nic->drops_st().link_down, 1u);
  EXPECT_FALSE(pair.a.nic->is_full_st(0)) << "or the engine would wait for room";
  pair.cable.is_up = true;
  test_now += kSecond;
  pair.a.receive();
  EXPECT_EQ(pair.a.nic->missing_st(), 0u);
  EXPECT_EQ(pair.a.send(pair.b.at, "back"), 1u);
  EXPECT_EQ(pair.b.receive(), Texts{"back"});
}

TEST(FrameNicTest, a_link_whose_other_end_has_not_come_yet_is_not_missed) {
  FrameCable cable;
  cable.is_up = false;
  Host a(cable, 0, "10.0.0.1", 24);
  a.receive();
  EXPECT_EQ(a.nic->missing_st(), 0u);
}

TEST(FrameNicTest, damage_and_datagrams_for_others_are_dropped_and_counted) {
  Pair pair;
  pair.a.send(pair.b.at, "damage");
  pair.cable.on_the_way_to(1).front().back() ^= std::byte{1};
  EXPECT_EQ(pair.b.receive(), Texts{});
  EXPECT_EQ(pair.b.nic->drops_st().damaged, 1u);
  Endpoint closed = pair.b.at;
  set_port(closed, static_cast<std::uint16_t>(port_of(closed) ^ 1));
  pair.a.send(closed, "nobody's");
  EXPECT_EQ(pair.b.receive(), Texts{});
  EXPECT_EQ(pair.b.nic->drops_st().for_others, 1u);
  pair.a.send(pair.b.at, std::string(2000, 'x'));
  EXPECT_EQ(pair.a.nic->drops_st().too_large, 1u);
}

FrameCable::Bytes tagged(const FrameCable::Bytes& frame, int tag) {
  FrameCable::Bytes made(frame.begin(), frame.begin() + 12);
  made.insert(made.end(), {std::byte{0x81}, std::byte{0}, static_cast<std::byte>(tag >> 8),
                           static_cast<std::byte>(tag)});
  made.insert(made.end(), frame.begin() + 12, frame.end());
  return made;
}

// A VLAN is another network, on which the same addresses may belong to other hosts. A tag of none
// says a priority. Some devices take tags out of frames, and say so beside them.
TEST(FrameNicTest, frames_of_a_vlan_are_for_others) {
  for (const bool strips : {false, true}) {
    Pair pair;
    pair.cable.strips = strips;
    pair.a.send(pair.b.at, "hello");
    const FrameCable::Bytes datagram = pair.cable.on_the_way_to(1).at(0);
    pair.cable.on_the_way_to(1).clear();
    constexpr int kPriority = 0x6000, kVlan = 0x6005;
    pair.cable.put(1, tagged(datagram, kPriority));
    EXPECT_EQ(pair.b.receive(), Texts{"hello"});
    pair.cable.put(1, tagged(datagram, kVlan));
    EXPECT_EQ(pair.b.receive(), Texts{}) << (strips ? "without its tag" : "with its tag");
    EXPECT_EQ(pair.b.nic->drops_st().for_others, 1u);
    pair.cable.put(1, tagged(question(std::byte{0x66}, "10.0.0.1", "10.0.0.2"), kVlan));
    EXPECT_EQ(pair.b.receive(), Texts{});
    EXPECT_TRUE(pair.cable.on_the_way_to(0).empty())
        << "a question of another network was answered";
    EXPECT_EQ(pair.b.send(pair.a.at, "where?"), 1u);
    EXPECT_EQ(last_of_destination(pair.cable.on_the_way_to(0).at(0)), std::byte{1});
  }
}

// A device that hears all groups may hear everybody.
TEST(FrameNicTest, frames_to_another_mac_address_are_for_others) {
  Pair pair;
  constexpr MacAddress kOther{std::byte{2}, {}, {}, {}, {}, std::byte{0x77}};
  pair.a.send(pair.b.at, "hello");
  FrameCable::Bytes datagram = pair.cable.on_the_way_to(1).at(0);
  pair.cable.on_the_way_to(1).clear();
  std::ranges::copy(kOther, datagram.begin());
  pair.cable.put(1, datagram);
  EXPECT_EQ(pair.b.receive(), Texts{});
  EXPECT_EQ(pair.b.nic->drops_st().for_others, 1u);
  FrameCable::Bytes asks = question(std::byte{0x66}, "10.0.0.1", "10.0.0.2");
  std::ranges::copy(kOther, asks.begin());
  pair.cable.put(1, asks);
  EXPECT_EQ(pair.b.receive(), Texts{});
  EXPECT_EQ(pair.b.nic->drops_st().for_others, 2u);
  // A loopback interface has no address, and whoever sends by it writes none.
  std::ranges::copy(MacAddress{}, datagram.begin());
  pair.cable.put(1, datagram);
  EXPECT_EQ(pair.b.receive(), Texts{"hello"});
}

// Fewer than were asked for say that nothing more is there, and let the engine sleep.
TEST(FrameNicTest, frames_for_others_hide_none_of_ours_that_lie_behind_them) {
  Pair pair;
  Endpoint closed = pair.b.at;
  set_port(closed, static_cast<std::uint16_t>(port_of(closed) ^ 1));
  for (const char* text : {"first", "second", "third"}) {
    for (int i = 0; i < 15; ++i) pair.a.send(closed, "nobody's");
    pair.a.send(pair.b.at, text);
  }
  EXPECT_EQ(pair.b.receive(), (Texts{"first", "second", "third"}));
  EXPECT_EQ(pair.b.nic->drops_st().for_others, 45u);
}

TEST(FrameNicTest, a_flood_of_frames_for_others_leaves_time_for_other_work) {
  Pair pair;
  pair.cable.slots = 1'000;
  Endpoint closed = pair.b.at;
  set_port(closed, static_cast<std::uint16_t>(port_of(closed) ^ 1));
  for (int i = 0; i < 200; ++i) pair.a.send(closed, "nobody's");
  pair.a.send(pair.b.at, "ours");
  EXPECT_EQ(pair.b.receive(), Texts{});
  EXPECT_FALSE(pair.cable.on_the_way_to(1).empty());
  Texts heard;
  for (int looks = 0; looks < 10 && heard.empty(); ++looks) heard = pair.b.receive();
  EXPECT_EQ(heard, Texts{"ours"});
}

TEST(FrameNicTest, what_stays_in_memory_has_a_checksum_of_udps_only_where_one_is_needed) {
  for (const bool needed : {false, true}) {
    for (const auto& [left, right] : {std::pair("10.0.0.1", "10.0.0.2"), {"fd00::1", "fd00::2"}}) {
      FrameCable cable;
      cable.ends[0]->set_in_memory();
      Host a(cable, 0, left, 24, "", needed), b(cable, 1, right, 24);
      a.send(b.at, "hello");
      a.receive();
      b.receive();
      a.receive();
      UdpFrame frame;
      const FrameCable::Bytes& bytes = cable.on_the_way_to(1).front();
      ASSERT_EQ(parse_udp_frame(bytes, bytes.size(), frame), FrameVerdict::kUdp);
      EXPECT_EQ(frame.checksum != 0, needed || is_ipv6(b.at));
      EXPECT_EQ(b.receive(), Texts{"hello"});
    }
  }
}

// As a host whose kernel has nobody at that port answers: the datagram, behind its own headers.
TEST(FrameNicTest, a_refusal_by_icmp_is_heard_when_it_quotes_one_of_our_ports) {
  Pair pair;
  pair.a.send(pair.b.at, "who is there?");
  FrameCable::Bytes sent = pair.cable.on_the_way_to(1).front();
  pair.cable.on_the_way_to(1).clear();
  FrameCable::Bytes refusal(sent.begin(), sent.begin() + kEthernetHeader + kIpv4Header);
  write_ethernet(pair.cable.ends[0]->info().mac, pair.cable.ends[1]->info().mac, kEtherTypeIpv4,
                 refusal);
  refusal[kEthernetHeader + 9] = std::byte{1};
  refusal.insert(refusal.end(), {std::byte{3}, std::byte{3}, {}, {}, {}, {}, {}, {}});
  refusal.insert(refusal.end(), sent.begin() + kEthernetHeader, sent.end());
  const std::span<std::byte> header = std::span(refusal).subspan(kEthernetHeader, kIpv4Header);
  store_number(header, 2, static_cast<std::uint16_t>(refusal.size() - kEthernetHeader));
  store_number(header, 10, 0);
  InternetChecksum sum;
  sum.add(header);
  const std::uint16_t complement = sum.complement();
  memcpy(&header[10], &complement, sizeof complement);
  for (std::size_t bytes = 0; bytes < refusal.size() - 13; ++bytes) {
    pair.cable.put(0, {refusal.begin(), refusal.begin() + static_cast<std::ptrdiff_t>(bytes)});
    pair.a.receive();
    EXPECT_TRUE(pair.a.nic->take_refusals_st().empty()) << "cut off after " << bytes;
  }
  pair.cable.put(0, refusal);
  pair.a.receive();
  const std::vector<Refusal> refusals = pair.a.nic->take_refusals_st();
  ASSERT_EQ(refusals.size(), 1u);
  EXPECT_EQ(refusals[0].destination, pair.b.at);
  EXPECT_EQ(text_of(refusals[0].quoted), "who is there?");
  const std::size_t source_port = kEthernetHeader + kIpv4Header + 8 + kIpv4Header + 1;
  refusal[source_port] ^= std::byte{1};
  pair.cable.put(0, refusal);
  pair.a.receive();
  EXPECT_TRUE(pair.a.nic->take_refusals_st().empty()) << "another port's";
}

TEST(FrameNicTest, the_kernel_keeps_the_port_of_an_address_that_it_has_too) {
  FrameCable cable;
  Host a(cable, 0, "127.0.0.9", 8);
  ASSERT_NE(port_of(a.at), 0);
  const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  EXPECT_NE(bind(fd, sockaddr_of(a.at), a.at.size), 0) << "it is taken";
  FrameNicOptions options;
  options.locals = {{a.at, 1500}};
  FrameLink link;
  link.addresses = {{ip("127.0.0.9"), 8}};
  link.port = cable.ends[1];
  const auto second = FrameNic::create(options, {link});
  ASSERT_FALSE(second.ok());
  EXPECT_NE(second.status().message().find(to_string(a.at)), std::string::npos);
  a.nic->close_st();
  EXPECT_EQ(bind(fd, sockaddr_of(a.at), a.at.size), 0) << strerror(errno);
  close(fd);
  options.locals = {{ip("10.9.9.9"), 1500}};
  EXPECT_EQ(FrameNic::create(options, {link}).status().code(), Code::kResource);
}

TEST(FrameNicTest, a_sleeper_wakes_to_poll_soon_after_traffic_and_seldom_later) {
  EXPECT_EQ(PollAlarm::period_after(0), PollAlarm::kShortest);
  EXPECT_EQ(PollAlarm::period_after(8 * kMillisecond), kMillisecond);
  EXPECT_EQ(PollAlarm::period_after(kSecond), PollAlarm::kLongest);
  FrameCable cable;
  Host a(cable, 0, "10.0.0.1", 24);
  a.receive();
  ASSERT_EQ(a.nic->descriptors().size(), 1u);
  pollfd set{a.nic->descriptors()[0].fd, POLLIN, 0};
  EXPECT_EQ(poll(&set, 1, 10'000), 1);
}

TEST(FrameNicTest, a_closed_one_takes_everything_and_brings_nothing) {
  Pair pair;
  pair.b.send(pair.a.at, "too late");
  pair.a.nic->close_st();
  EXPECT_EQ(pair.a.send(pair.b.at, "too late"), 1u);
  EXPECT_EQ(pair.a.receive(), Texts{});
  EXPECT_FALSE(pair.a.nic->is_full_st(0));
  EXPECT_TRUE(pair.cable.on_the_way_to(1).empty());
}

}  // namespace
}  // namespace taco::harp
