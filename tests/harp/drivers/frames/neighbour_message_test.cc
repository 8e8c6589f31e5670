#include "harp/drivers/frames/neighbour_message.h"

#include <gtest/gtest.h>

#include <vector>

#include "harp/drivers/frames/internet_checksum.h"
#include "support/frame_bytes.h"
#include "support/ip.h"

namespace taco::harp {
namespace {

using Kind = NeighbourMessage::Kind;
constexpr MacAddress mac(int last) {
  return {std::byte{2}, {}, {}, {}, {}, static_cast<std::byte>(last)};
}

Frame solicitation(const char* own, const char* subject) {
  Frame frame(kMaxNeighbourFrame);
  frame.resize(write_solicitation(mac(1), ip(own), ip(subject), frame));
  return frame;
}

Frame advertisement(const char* own, const NeighbourMessage& to) {
  Frame frame(kMaxNeighbourFrame);
  frame.resize(write_advertisement(mac(2), ip(own), to, frame));
  return frame;
}

// The checksum of ICMPv6 as it is again when something was changed on purpose.
void mend_checksum(Frame& frame) {
  frame[56] = frame[57] = std::byte{0};
  InternetChecksum sum;
  sum.add(std::span(frame).subspan(22, 32));
  sum.add_number(static_cast<std::uint16_t>(frame.size() - 54));
  sum.add_number(58);
  sum.add(std::span(frame).subspan(54));
  const std::uint16_t finished = sum.complement();
  std::memcpy(&frame[56], &finished, sizeof finished);
}

// Between two kernels, 10.0.0.1 and fd00::1 (02:..:01), 10.0.0.2 and fd00::2 (02:..:02).
const char* const kArpRequest =
    "ff ff ff ff ff ff 02 00 00 00 00 01 08 06 00 01 08 00 06 04 00 01 02 00 00 00 00 01 0a 00 00 "
    "01 "
    "00 00 00 00 00 00 0a 00 00 02";
const char* const kArpReply =
    "02 00 00 00 00 01 02 00 00 00 00 02 08 06 00 01 08 00 06 04 00 02 02 00 00 00 00 02 0a 00 00 "
    "02 "
    "02 00 00 00 00 01 0a 00 00 01";
const char* const kSolicitation =
    "33 33 ff 00 00 02 02 00 00 00 00 01 86 dd 60 00 00 00 00 20 3a ff fd 00 00 00 00 00 00 00 00 "
    "00 "
    "00 00 00 00 00 01 ff 02 00 00 00 00 00 00 00 00 00 01 ff 00 00 02 87 00 7d 97 00 00 00 00 fd "
    "00 "
    "00 00 00 00 00 00 00 00 00 00 00 00 00 02 01 01 02 00 00 00 00 01";
const char* const kAdvertisement =
    "02 00 00 00 00 01 02 00 00 00 00 02 86 dd 60 00 00 00 00 20 3a ff fd 00 00 00 00 00 00 00 00 "
    "00 "
    "00 00 00 00 00 02 fd 00 00 00 00 00 00 00 00 00 00 00 00 00 00 01 88 00 1c 9a 60 00 00 00 fd "
    "00 "
    "00 00 00 00 00 00 00 00 00 00 00 00 00 02 02 01 02 00 00 00 00 02";

TEST(NeighbourMessageTest, questions_and_answers_are_those_of_the_kernel_byte_by_byte) {
  EXPECT_EQ(solicitation("10.0.0.1", "10.0.0.2"), bytes_of(kArpRequest));
  EXPECT_EQ(solicitation("fd00::1", "fd00::2"), bytes_of(kSolicitation));
  const auto arp = parse_neighbour_message(bytes_of(kArpRequest));
  const auto discovery = parse_neighbour_message(bytes_of(kSolicitation));
  ASSERT_TRUE(arp && discovery);
  EXPECT_EQ(advertisement("10.0.0.2", *arp), bytes_of(kArpReply));
  EXPECT_EQ(advertisement("fd00::2", *discovery), bytes_of(kAdvertisement));
}

TEST(NeighbourMessageTest, a_question_is_read_and_answered_and_the_answer_is_read) {
  for (const auto& [asks, has] :
       {std::pair{"10.0.0.1", "10.0.0.2"}, std::pair{"fd00::1", "fd00::2:3456"}}) {
    const auto question = parse_neighbour_message(solicitation(asks, has));
    ASSERT_TRUE(question.has_value()) << asks;
    EXPECT_EQ(question->kind, Kind::kSolicitation);
    EXPECT_EQ(question->subject, ip(has));
    EXPECT_EQ(question->sender, ip(asks));
    EXPECT_EQ(question->mac, mac(1));
    const Frame answered = advertisement(has, *question);
    EXPECT_TRUE(std::ranges::equal(std::span(answered).first(6), mac(1)));
    const auto answer = parse_neighbour_message(answered);
    ASSERT_TRUE(answer.has_value()) << asks;
    EXPECT_EQ(answer->kind, Kind::kAdvertisement);
    EXPECT_EQ(answer->subject, ip(has));
    EXPECT_EQ(answer->mac, mac(2));
  }
}

TEST(NeighbourMessageTest, a_question_about_an_ipv6_address_goes_to_its_group) {
  const Frame frame = solicitation("fd00::1", "fd00::2:3456");
  const MacAddress group{std::byte{0x33}, std::byte{0x33}, std::byte{0xff},
                         std::byte{2},    std::byte{0x34}, std::byte{0x56}};
  EXPECT_EQ(solicited_node_mac(ip("fd00::2:3456")), group);
  EXPECT_TRUE(std::ranges::equal(std::span(frame).first(6), group));
  EXPECT_EQ(endpoint_of_address(std::span(frame).subspan(38, 16), 0), ip("ff02::1:ff02:3456"));
}

TEST(NeighbourMessageTest, who_has_no_address_yet_is_answered_as_all_are) {
  const auto question = parse_neighbour_message(solicitation("::", "fd00::2"));
  ASSERT_TRUE(question.has_value());
  const Frame answered = advertisement("fd00::2", *question);
  EXPECT_EQ(endpoint_of_address(std::span(answered).subspan(38, 16), 0), ip("ff02::1"));
  EXPECT_EQ(answered[5], std::byte{1});
  EXPECT_TRUE(parse_neighbour_message(answered).has_value());
}

TEST(NeighbourMessageTest, a_frame_cut_anywhere_says_nothing) {
  for (const auto& [asks, has] :
       {std::pair{"10.0.0.1", "10.0.0.2"}, std::pair{"fd00::1", "fd00::2"}}) {
    const Frame whole = solicitation(asks, has);
    for (std::size_t bytes = 0; bytes < whole.size(); ++bytes) {
      const Frame cut(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(bytes));
      EXPECT_FALSE(parse_neighbour_message(cut).has_value()) << bytes;
    }
  }
}

TEST(NeighbourMessageTest, arp_for_anything_but_ethernet_and_ipv4_says_nothing) {
  for (const std::size_t at : {14u, 16u, 18u, 19u, 20u}) {
    Frame frame = solicitation("10.0.0.1", "10.0.0.2");
    frame[at] ^= std::byte{9};
    EXPECT_FALSE(parse_neighbour_message(frame).has_value()) << at;
  }
}

TEST(NeighbourMessageTest, neighbour_discovery_from_beyond_a_router_is_not_believed) {
  Frame frame = solicitation("fd00::1", "fd00::2");
  frame[21] = std::byte{254};
  EXPECT_FALSE(parse_neighbour_message(frame).has_value());
}

TEST(NeighbourMessageTest, damage_to_a_message_of_icmpv6_shows) {
  const Frame whole = solicitation("fd00::1", "fd00::2");
  for (std::size_t at = 22; at < whole.size(); ++at) {
    Frame damaged = whole;
    damaged[at] ^= std::byte{4};
    EXPECT_FALSE(parse_neighbour_message(damaged).has_value()) << at;
  }
}

TEST(NeighbourMessageTest, options_that_do_not_fit_the_message_spoil_it) {
  for (const int units : {0, 2, 255}) {
    Frame frame = solicitation("fd00::1", "fd00::2");
    frame[79] = static_cast<std::byte>(units);
    mend_checksum(frame);
    EXPECT_FALSE(parse_neighbour_message(frame).has_value()) << units;
  }
}

TEST(NeighbourMessageTest, without_its_option_the_frame_says_whose_it_is) {
  Frame frame = solicitation("fd00::1", "fd00::2");
  frame[78] = std::byte{14};  // a nonce
  mend_checksum(frame);
  const auto message = parse_neighbour_message(frame);
  ASSERT_TRUE(message.has_value());
  EXPECT_EQ(message->mac, mac(1));
}

TEST(NeighbourMessageTest, the_mac_address_of_a_group_is_nobodys) {
  Frame arp = solicitation("10.0.0.1", "10.0.0.2");
  arp[22] = std::byte{0xff};
  EXPECT_FALSE(parse_neighbour_message(arp).has_value());
  Frame discovery = solicitation("fd00::1", "fd00::2");
  discovery[80] |= std::byte{1};
  mend_checksum(discovery);
  EXPECT_FALSE(parse_neighbour_message(discovery).has_value());
  EXPECT_FALSE(parse_neighbour_message(solicitation("10.0.0.1", "224.0.0.1")).has_value());
}

}  // namespace
}  // namespace taco::harp
