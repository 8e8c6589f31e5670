#include "harp/drivers/frames/udp_frame.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "harp/drivers/frames/internet_checksum.h"
#include "support/frame_bytes.h"
#include "support/ip.h"
#include "support/sim_random.h"

namespace taco::harp {
namespace {

// A datagram that holds "taco", as a kernel sent it to another one: from 40000 to 40001. It left
// the checksum of UDP to an interface that has no wire: the words of the addresses, the protocol
// and the length (0x1420, 0xfa21) are all that it holds.
const char* const kMacs = "02 00 00 00 00 02 02 00 00 00 00 01";
const char* const kIpv4Packet =
    "08 00  45 00 00 20 27 4b 40 00 40 11 ff 7f 0a 00 00 01 0a 00 00 02"
    "  9c 40 9c 41 00 0c 14 20  74 61 63 6f";
const char* const kIpv6Packet =
    "86 dd  60 04 b0 fa 00 0c 11 40 fd 00 00 00 00 00 00 00 00 00 00 00 00 00 00 01"
    "  fd 00 00 00 00 00 00 00 00 00 00 00 00 00 00 02  9c 40 9c 41 00 0c fa 21  74 61 63 6f";

Frame known_frame(const char* packet) { return bytes_of(std::string(kMacs) + packet); }

FrameVerdict verdict_of(const Frame& frame) {
  UdpFrame out;
  return parse_udp_frame(frame, frame.size(), out);
}

MacAddress mac(int last) { return {std::byte{2}, {}, {}, {}, {}, static_cast<std::byte>(last)}; }

UdpFlow flow(bool v6) {
  return {mac(1), mac(2), v6 ? ip("fd00::1", 40'000) : ip("10.0.0.1", 40'000),
          v6 ? ip("fd00::2", 40'001) : ip("10.0.0.2", 40'001)};
}

Frame frame_of(const UdpFlow& flow, std::span<const std::byte> payload,
               UdpChecksumBy checksum = UdpChecksumBy::kSoftware) {
  const IoSlice slice{payload.data(), payload.size()};
  const std::size_t headers = udp_headers_bytes(flow.destination);
  Frame frame(headers + payload.size());
  write_udp_headers(flow, {{&slice, 1}, payload.size(), checksum}, frame);
  std::ranges::copy(payload, frame.begin() + static_cast<std::ptrdiff_t>(headers));
  return frame;
}

Frame noise(SimRandom& random, std::size_t bytes) {
  Frame result(bytes);
  random.fill(result);
  return result;
}

// The sum as RFC 1071 defines it, word by word.
std::uint16_t plain_sum(std::span<const std::byte> bytes) {
  std::uint32_t sum = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    sum += std::to_integer<std::uint32_t>(bytes[i]) << (i % 2 == 0 ? 8 : 0);
    sum = (sum & 0xffff) + (sum >> 16);
  }
  return static_cast<std::uint16_t>(sum);
}

TEST(InternetChecksumTest, is_that_of_the_example_in_rfc_1071) {
  InternetChecksum sum;
  sum.add(bytes_of("00 01 f2 03 f4 f5 f6 f7"));
  EXPECT_EQ(ntohs(sum.sum()), 0xddf2);
  EXPECT_EQ(ntohs(sum.complement()), 0x220d);
}

TEST(InternetChecksumTest, is_the_sum_of_words_however_the_bytes_are_cut) {
  SimRandom random(1);
  for (int round = 0; round < 400; ++round) {
    const Frame bytes = noise(random, random.below(round % 8 == 0 ? 9'000 : 90));
    InternetChecksum sum;
    for (std::size_t at = 0; at < bytes.size();) {
      const std::size_t piece = std::min<std::size_t>(random.below(70), bytes.size() - at);
      sum.add(std::span(bytes).subspan(at, piece));
      at += piece;
    }
    const std::uint16_t plain = plain_sum(bytes);
    EXPECT_EQ(ntohs(sum.sum()), plain) << bytes.size() << " bytes, round " << round;
  }
}

TEST(InternetChecksumTest, a_sum_of_ones_wraps_around) {
  InternetChecksum sum;
  sum.add(Frame(9'000, std::byte{0xff}));
  EXPECT_EQ(sum.sum(), 0xffff);
}

TEST(UdpFrameTest, frames_of_the_kernel_are_read) {
  for (const bool v6 : {false, true}) {
    const Frame frame = known_frame(v6 ? kIpv6Packet : kIpv4Packet);
    UdpFrame read;
    ASSERT_EQ(parse_udp_frame(frame, frame.size(), read), FrameVerdict::kUdp);
    EXPECT_EQ(read.ethernet.source, mac(1));
    EXPECT_EQ(read.ethernet.destination, mac(2));
    EXPECT_EQ(to_string(read.source), v6 ? "[fd00::1]:40000" : "10.0.0.1:40000");
    EXPECT_EQ(to_string(read.destination), v6 ? "[fd00::2]:40001" : "10.0.0.2:40001");
    EXPECT_EQ(read.payload_bytes, 4u);
    EXPECT_EQ(read.payload_offset, v6 ? 62u : 42u);
    const auto payload = std::span(frame).subspan(read.payload_offset);
    EXPECT_EQ(check_udp_checksum(read, payload), UdpChecksumVerdict::kUnfinished);
  }
}

TEST(UdpFrameTest, the_same_datagrams_are_written_as_the_kernel_writes_them) {
  const Frame payload = bytes_of("74 61 63 6f");
  for (const bool v6 : {false, true}) {
    Frame kernels = known_frame(v6 ? kIpv6Packet : kIpv4Packet);
    const Frame ours = frame_of(flow(v6), payload, UdpChecksumBy::kHardware);
    // The number of the packet, which says nothing, and its part of the checksum; a flow label.
    if (v6) kernels[15] = kernels[16] = kernels[17] = std::byte{0};
    if (!v6) kernels[18] = kernels[19] = std::byte{0};
    if (!v6) kernels[24] = ours[24], kernels[25] = ours[25];
    EXPECT_EQ(ours, kernels);
  }
}

// 0x1420 + 0x9c40 + 0x9c41 + 0x000c + 0x7461 + 0x636f, with the carries 0x247f, and its complement.
TEST(UdpFrameTest, the_checksum_of_a_known_datagram) {
  const Frame frame = frame_of(flow(false), bytes_of("74 61 63 6f"));
  EXPECT_EQ(load_number(frame, 40), 0xdb80);
}

TEST(UdpFrameTest, every_length_is_read_back_over_both_families) {
  SimRandom random(2);
  for (const bool v6 : {false, true}) {
    for (std::size_t bytes = 0; bytes < 9'000; bytes = bytes < 70 ? bytes + 1 : bytes * 2 + 1) {
      const Frame payload = noise(random, bytes);
      const Frame frame = frame_of(flow(v6), payload);
      UdpFrame read;
      ASSERT_EQ(parse_udp_frame(frame, frame.size(), read), FrameVerdict::kUdp) << bytes;
      EXPECT_EQ(read.source, flow(v6).source);
      EXPECT_EQ(read.destination, flow(v6).destination);
      ASSERT_EQ(read.payload_bytes, bytes);
      const auto held = std::span(frame).subspan(read.payload_offset, bytes);
      EXPECT_TRUE(std::ranges::equal(held, payload));
      EXPECT_EQ(check_udp_checksum(read, held), UdpChecksumVerdict::kGood) << bytes;
    }
  }
}

TEST(UdpFrameTest, a_checksum_covers_every_byte_of_the_datagram) {
  SimRandom random(3);
  for (const bool v6 : {false, true}) {
    const Frame frame = frame_of(flow(v6), noise(random, 33));
    for (std::size_t at = udp_headers_bytes(flow(v6).destination) - 8; at < frame.size(); ++at) {
      Frame damaged = frame;
      damaged[at] ^= std::byte{1};
      UdpFrame read;
      if (parse_udp_frame(damaged, damaged.size(), read) != FrameVerdict::kUdp) continue;
      const auto held = std::span(damaged).subspan(read.payload_offset, read.payload_bytes);
      EXPECT_EQ(check_udp_checksum(read, held), UdpChecksumVerdict::kBad) << at;
    }
  }
}

TEST(UdpFrameTest, a_checksum_that_comes_out_as_zero_is_written_as_all_ones) {
  const UdpFlow between = flow(false);
  const Frame empty = frame_of(between, bytes_of("00 00"));
  // The word that makes the sum all ones, and its complement zero.
  const Frame payload{empty[40], empty[41]};
  const Frame frame = frame_of(between, payload);
  EXPECT_EQ(frame[40], std::byte{0xff});
  EXPECT_EQ(frame[41], std::byte{0xff});
  UdpFrame read;
  ASSERT_EQ(parse_udp_frame(frame, frame.size(), read), FrameVerdict::kUdp);
  EXPECT_EQ(check_udp_checksum(read, payload), UdpChecksumVerdict::kGood);
}

TEST(UdpFrameTest, a_checksum_for_hardware_is_told_from_a_wrong_one) {
  const Frame payload = bytes_of("74 61 63 6f 00");
  for (const bool v6 : {false, true}) {
    const Frame frame = frame_of(flow(v6), payload, UdpChecksumBy::kHardware);
    UdpFrame read;
    ASSERT_EQ(parse_udp_frame(frame, frame.size(), read), FrameVerdict::kUdp);
    EXPECT_EQ(check_udp_checksum(read, payload), UdpChecksumVerdict::kUnfinished);
    // The hardware's part: the sum over all of UDP, complemented.
    InternetChecksum sum;
    sum.add(std::span(frame).subspan(read.payload_offset - kUdpHeaderBytes));
    read.checksum = sum.complement();
    EXPECT_EQ(check_udp_checksum(read, payload), UdpChecksumVerdict::kGood);
  }
}

TEST(UdpFrameTest, no_checksum_is_allowed_over_ipv4_only) {
  Frame frame = known_frame(kIpv4Packet);
  frame[40] = frame[41] = std::byte{0};
  UdpFrame read;
  ASSERT_EQ(parse_udp_frame(frame, frame.size(), read), FrameVerdict::kUdp);
  EXPECT_EQ(check_udp_checksum(read, std::span(frame).subspan(42)), UdpChecksumVerdict::kAbsent);
  Frame over_ipv6 = known_frame(kIpv6Packet);
  over_ipv6[60] = over_ipv6[61] = std::byte{0};
  EXPECT_EQ(verdict_of(over_ipv6), FrameVerdict::kDamaged);
}

TEST(UdpFrameTest, one_tag_of_a_vlan_is_read_and_two_are_not) {
  const std::string packet = kIpv4Packet, tag = "81 00 20 05";
  const Frame one = known_frame((tag + packet).c_str());
  UdpFrame read;
  ASSERT_EQ(parse_udp_frame(one, one.size(), read), FrameVerdict::kUdp);
  EXPECT_EQ(read.ethernet.vlan, 5);
  EXPECT_EQ(read.payload_offset, 46u);
  EXPECT_EQ(verdict_of(known_frame((tag + tag + packet).c_str())), FrameVerdict::kOther);
  EXPECT_EQ(verdict_of(known_frame(("88 a8 20 05" + tag + packet).c_str())), FrameVerdict::kOther);
}

TEST(UdpFrameTest, padding_behind_the_datagram_is_left_out) {
  Frame frame = known_frame(kIpv4Packet);
  frame.resize(60, std::byte{0xee});
  UdpFrame read;
  ASSERT_EQ(parse_udp_frame(frame, frame.size(), read), FrameVerdict::kUdp);
  EXPECT_EQ(read.payload_bytes, 4u);
}

TEST(UdpFrameTest, only_the_headers_need_to_lie_in_the_first_piece) {
  SimRandom random(4);
  for (const bool v6 : {false, true}) {
    const Frame frame = frame_of(flow(v6), noise(random, 4'000));
    const std::size_t headers = udp_headers_bytes(flow(v6).destination);
    UdpFrame read;
    const auto head = std::span(frame).first(headers);
    EXPECT_EQ(parse_udp_frame(head, frame.size(), read), FrameVerdict::kUdp);
    EXPECT_EQ(read.payload_bytes, 4'000u);
    EXPECT_EQ(parse_udp_frame(head, frame.size() - 1, read), FrameVerdict::kDamaged);
    EXPECT_NE(parse_udp_frame(head.first(headers - 1), frame.size(), read), FrameVerdict::kUdp);
  }
}

// Read at every length, so that a sanitizer sees who reads beyond the end.
TEST(UdpFrameTest, a_frame_cut_anywhere_is_not_taken_for_a_datagram) {
  for (const bool v6 : {false, true}) {
    const Frame whole = frame_of(flow(v6), bytes_of("74 61 63 6f"));
    for (std::size_t bytes = 0; bytes < whole.size(); ++bytes) {
      const Frame cut(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(bytes));
      EXPECT_NE(verdict_of(cut), FrameVerdict::kUdp) << bytes;
    }
  }
}

// A byte of the IPv4 header, with the checksum made right again.
FrameVerdict verdict_with(std::size_t at, int value) {
  Frame frame = known_frame(kIpv4Packet);
  frame[at] = static_cast<std::byte>(value);
  frame[24] = frame[25] = std::byte{0};
  InternetChecksum sum;
  const std::size_t header = 4 * std::to_integer<std::size_t>(frame[14] & std::byte{15});
  sum.add(std::span(frame).subspan(14, std::min(header, frame.size() - 14)));
  const std::uint16_t finished = sum.complement();
  std::memcpy(&frame[24], &finished, sizeof finished);
  return verdict_of(frame);
}

TEST(UdpFrameTest, an_ipv4_header_is_believed_in_nothing) {
  EXPECT_EQ(verdict_with(15, 0), FrameVerdict::kUdp) << "the same frame";
  EXPECT_EQ(verdict_with(14, 0x65), FrameVerdict::kDamaged) << "version";
  EXPECT_EQ(verdict_with(14, 0x44), FrameVerdict::kDamaged) << "a header of 16 bytes";
  EXPECT_EQ(verdict_with(14, 0x4f), FrameVerdict::kDamaged) << "a header longer than the packet";
  EXPECT_EQ(verdict_with(17, 33), FrameVerdict::kDamaged) << "longer than the frame";
  EXPECT_EQ(verdict_with(17, 19), FrameVerdict::kDamaged) << "shorter than its header";
  EXPECT_EQ(verdict_with(17, 31), FrameVerdict::kDamaged) << "shorter than UDP says";
  EXPECT_EQ(verdict_with(20, 0x20), FrameVerdict::kOther) << "a first fragment";
  EXPECT_EQ(verdict_with(21, 1), FrameVerdict::kOther) << "a later fragment";
  EXPECT_EQ(verdict_with(23, 6), FrameVerdict::kOther) << "TCP";
  EXPECT_EQ(verdict_with(26, 224), FrameVerdict::kDamaged) << "from a group";
  EXPECT_EQ(verdict_with(26, 0), FrameVerdict::kDamaged) << "from nobody";
  Frame frame = known_frame(kIpv4Packet);
  frame[24] ^= std::byte{1};
  EXPECT_EQ(verdict_of(frame), FrameVerdict::kDamaged) << "checksum";
}

TEST(UdpFrameTest, options_of_ipv4_are_passed_over) {
  Frame frame = known_frame(kIpv4Packet);
  frame.insert(frame.begin() + 34, 4, std::byte{1});
  frame[14] = std::byte{0x46};
  frame[17] = std::byte{36};
  frame[24] = frame[25] = std::byte{0};
  InternetChecksum sum;
  sum.add(std::span(frame).subspan(14, 24));
  const std::uint16_t finished = sum.complement();
  std::memcpy(&frame[24], &finished, sizeof finished);
  UdpFrame read;
  ASSERT_EQ(parse_udp_frame(frame, frame.size(), read), FrameVerdict::kUdp);
  EXPECT_EQ(read.payload_offset, 46u);
  EXPECT_EQ(read.payload_bytes, 4u);
}

TEST(UdpFrameTest, a_length_of_udp_is_not_believed) {
  for (const int length : {0, 7, 13}) {
    Frame frame = known_frame(kIpv4Packet);
    frame[39] = static_cast<std::byte>(length);
    EXPECT_EQ(verdict_of(frame), FrameVerdict::kDamaged) << length;
  }
  Frame from_no_port = known_frame(kIpv4Packet);
  from_no_port[34] = from_no_port[35] = std::byte{0};
  EXPECT_EQ(verdict_of(from_no_port), FrameVerdict::kDamaged);
}

TEST(UdpFrameTest, ipv6_with_extension_headers_is_left_to_others) {
  for (const int next : {0, 43, 44, 60, 6, 58}) {
    Frame frame = frame_of(flow(true), bytes_of("74 61 63 6f"));
    frame[20] = static_cast<std::byte>(next);
    EXPECT_EQ(verdict_of(frame), FrameVerdict::kOther) << next;
  }
  Frame from_group = frame_of(flow(true), {});
  from_group[22] = std::byte{0xff};
  EXPECT_EQ(verdict_of(from_group), FrameVerdict::kDamaged);
}

TEST(UdpFrameTest, a_datagram_that_routers_may_cut_has_a_number) {
  Frame frame(kMaxUdpHeaders);
  write_udp_headers(flow(false), {{}, 0, UdpChecksumBy::kSoftware, true, 0xbeef}, frame);
  EXPECT_EQ(load_number(frame, 18), 0xbeef);
  EXPECT_EQ(load_number(frame, 20), 0);
  write_udp_headers(flow(false), {{}, 0}, frame);
  EXPECT_EQ(load_number(frame, 20), 0x4000);
}

}  // namespace
}  // namespace taco::harp
