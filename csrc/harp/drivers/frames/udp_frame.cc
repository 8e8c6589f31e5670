#include "harp/drivers/frames/udp_frame.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/assert.h"
#include "harp/address.h"
#include "harp/drivers/frames/internet_checksum.h"

namespace taco::harp {

namespace {

constexpr std::uint16_t kMoreFragments = 0x2000, kFragmentOffset = 0x1fff, kDontFragment = 0x4000;
constexpr std::byte kHopLimit{64};
constexpr std::uint16_t kAllOnes = 0xffff;

// The part of a packet that holds UDP, and what the IP header said about it.
struct UdpPart {
  std::span<const std::byte> head;  // as far as it is there
  std::size_t bytes = 0;            // by the IP header
  std::size_t offset = 0;           // in the frame
};

std::uint16_t wire_word(std::span<const std::byte> from, std::size_t at) {
  std::uint16_t word;
  std::memcpy(&word, from.data() + at, sizeof word);
  return word;
}

void store_wire_word(std::span<std::byte> to, std::size_t at, std::uint16_t word) {
  std::memcpy(to.data() + at, &word, sizeof word);
}

// Addresses, protocol and length, which the checksum of UDP covers as well.
InternetChecksum pseudo_header_sum(const Endpoint& source, const Endpoint& destination,
                                   std::size_t udp_bytes) {
  InternetChecksum sum;
  sum.add(address_bytes(source));
  sum.add(address_bytes(destination));
  sum.add_number(kUdpProtocol);
  sum.add_number(static_cast<std::uint16_t>(udp_bytes));
  return sum;
}

FrameVerdict parse_ipv4(std::span<const std::byte> head, std::size_t packet_bytes, UdpFrame& out,
                        UdpPart& udp) {
  if (head.size() < kIpv4Header || (head[0] >> 4) != std::byte{4}) return FrameVerdict::kDamaged;
  const std::size_t header = 4 * std::to_integer<std::size_t>(head[0] & std::byte{0xf});
  const std::size_t total = load_number(head, 2);
  if (header < kIpv4Header || header > head.size() || total < header || total > packet_bytes) {
    return FrameVerdict::kDamaged;
  }
  InternetChecksum sum;
  sum.add(head.first(header));
  if (sum.complement() != 0) return FrameVerdict::kDamaged;
  if (head[9] != std::byte{kUdpProtocol}) return FrameVerdict::kOther;
  if ((load_number(head, 6) & (kMoreFragments | kFragmentOffset)) != 0) return FrameVerdict::kOther;
  out.source = endpoint_of_address(head.subspan(12, 4), 0);
  out.destination = endpoint_of_address(head.subspan(16, 4), 0);
  udp = {head.subspan(header), total - header, header};
  return FrameVerdict::kUdp;
}

FrameVerdict parse_ipv6(std::span<const std::byte> head, std::size_t packet_bytes, UdpFrame& out,
                        UdpPart& udp) {
  if (head.size() < kIpv6Header || (head[0] >> 4) != std::byte{6}) return FrameVerdict::kDamaged;
  const std::size_t payload = load_number(head, 4);
  if (kIpv6Header + payload > packet_bytes) return FrameVerdict::kDamaged;
  if (head[6] != std::byte{kUdpProtocol}) return FrameVerdict::kOther;
  out.source = endpoint_of_address(head.subspan(8, 16), 0);
  out.destination = endpoint_of_address(head.subspan(24, 16), 0);
  udp = {head.subspan(kIpv6Header), payload, kIpv6Header};
  return FrameVerdict::kUdp;
}

FrameVerdict parse_udp(const UdpPart& udp, UdpFrame& out) {
  if (udp.bytes < kUdpHeaderBytes || udp.head.size() < kUdpHeaderBytes) {
    return FrameVerdict::kDamaged;
  }
  const std::size_t length = load_number(udp.head, 4);
  if (length < kUdpHeaderBytes || length > udp.bytes) return FrameVerdict::kDamaged;
  set_port(out.source, load_number(udp.head, 0));
  set_port(out.destination, load_number(udp.head, 2));
  out.checksum = wire_word(udp.head, 6);
  out.payload_bytes = length - kUdpHeaderBytes;
  // Nobody could answer it. Over IPv6 every sender has to compute a checksum.
  const bool has_sender = port_of(out.source) != 0 && !is_nobodys(out.source);
  const bool may_lack_checksum = !is_ipv6(out.source);
  if (!has_sender || (out.checksum == 0 && !may_lack_checksum)) return FrameVerdict::kDamaged;
  return FrameVerdict::kUdp;
}

void write_ipv4(const UdpFlow& flow, const UdpDatagram& datagram, std::size_t udp_bytes,
                std::span<std::byte> header) {
  header[0] = std::byte{0x45};
  header[1] = std::byte{0};
  store_number(header, 2, static_cast<std::uint16_t>(kIpv4Header + udp_bytes));
  store_number(header, 4, datagram.identification);
  store_number(header, 6, datagram.may_be_fragmented ? 0 : kDontFragment);
  header[8] = kHopLimit;
  header[9] = std::byte{kUdpProtocol};
  store_wire_word(header, 10, 0);
  std::ranges::copy(address_bytes(flow.source), header.begin() + 12);
  std::ranges::copy(address_bytes(flow.destination), header.begin() + 16);
  InternetChecksum sum;
  sum.add(header.first(kIpv4Header));
  store_wire_word(header, 10, sum.complement());
}

void write_ipv6(const UdpFlow& flow, std::size_t udp_bytes, std::span<std::byte> header) {
  std::ranges::fill(header.first(4), std::byte{0});
  header[0] = std::byte{0x60};
  store_number(header, 4, static_cast<std::uint16_t>(udp_bytes));
  header[6] = std::byte{kUdpProtocol};
  header[7] = kHopLimit;
  std::ranges::copy(address_bytes(flow.source), header.begin() + 8);
  std::ranges::copy(address_bytes(flow.destination), header.begin() + 24);
}

void write_udp(const UdpFlow& flow, const UdpDatagram& datagram, std::size_t udp_bytes,
               std::span<std::byte> header) {
  store_number(header, 0, port_of(flow.source));
  store_number(header, 2, port_of(flow.destination));
  store_number(header, 4, static_cast<std::uint16_t>(udp_bytes));
  store_wire_word(header, 6, 0);
  if (datagram.checksum == UdpChecksumBy::kNobody) return;
  InternetChecksum sum = pseudo_header_sum(flow.source, flow.destination, udp_bytes);
  if (datagram.checksum == UdpChecksumBy::kHardware) {
    store_wire_word(header, 6, sum.sum());
    return;
  }
  sum.add(header.first(kUdpHeaderBytes));
  for (const IoSlice& slice : datagram.payload) {
    sum.add({static_cast<const std::byte*>(slice.data), slice.bytes});
  }
  // Zero means that there is none; ones' complement has another zero.
  store_wire_word(header, 6, sum.complement() != 0 ? sum.complement() : kAllOnes);
}

}  // namespace

FrameVerdict parse_udp_frame(std::span<const std::byte> head, std::size_t frame_bytes,
                             UdpFrame& out) {
  const auto ethernet = parse_ethernet(head);
  if (!ethernet || frame_bytes < head.size()) return FrameVerdict::kOther;
  out.ethernet = *ethernet;
  const std::span<const std::byte> packet = head.subspan(ethernet->bytes);
  const std::size_t packet_bytes = frame_bytes - ethernet->bytes;
  UdpPart udp;
  FrameVerdict verdict = FrameVerdict::kOther;
  if (ethernet->type == kEtherTypeIpv4) verdict = parse_ipv4(packet, packet_bytes, out, udp);
  if (ethernet->type == kEtherTypeIpv6) verdict = parse_ipv6(packet, packet_bytes, out, udp);
  if (verdict != FrameVerdict::kUdp) return verdict;
  out.payload_offset = ethernet->bytes + udp.offset + kUdpHeaderBytes;
  return parse_udp(udp, out);
}

UdpChecksumVerdict check_udp_checksum(const UdpFrame& frame, std::span<const std::byte> payload) {
  if (frame.checksum == 0) return UdpChecksumVerdict::kAbsent;
  const std::size_t udp_bytes = kUdpHeaderBytes + frame.payload_bytes;
  InternetChecksum sum = pseudo_header_sum(frame.source, frame.destination, udp_bytes);
  const std::uint16_t unfinished = sum.sum();
  sum.add_number(port_of(frame.source));
  sum.add_number(port_of(frame.destination));
  sum.add_number(static_cast<std::uint16_t>(udp_bytes));
  sum.add(std::as_bytes(std::span(&frame.checksum, 1)));
  sum.add(payload);
  if (sum.complement() == 0) return UdpChecksumVerdict::kGood;
  return frame.checksum == unfinished ? UdpChecksumVerdict::kUnfinished : UdpChecksumVerdict::kBad;
}

std::size_t udp_headers_bytes(const Endpoint& destination) {
  return kEthernetHeader + (is_ipv6(destination) ? kIpv6Header : kIpv4Header) + kUdpHeaderBytes;
}

void write_udp_headers(const UdpFlow& flow, const UdpDatagram& datagram,
                       std::span<std::byte> frame) {
  const bool v6 = is_ipv6(flow.destination);
  const std::size_t udp_bytes = kUdpHeaderBytes + datagram.bytes;
  TACO_ASSERT(is_ipv6(flow.source) == v6 && frame.size() >= udp_headers_bytes(flow.destination));
  TACO_ASSERT(!v6 || datagram.checksum != UdpChecksumBy::kNobody);
  TACO_ASSERT(udp_bytes + (v6 ? 0 : kIpv4Header) <= UINT16_MAX);
  write_ethernet(flow.destination_mac, flow.source_mac, v6 ? kEtherTypeIpv6 : kEtherTypeIpv4,
                 frame);
  const std::span<std::byte> packet = frame.subspan(kEthernetHeader);
  if (v6) {
    write_ipv6(flow, udp_bytes, packet);
  } else {
    write_ipv4(flow, datagram, udp_bytes, packet);
  }
  write_udp(flow, datagram, udp_bytes, packet.subspan(v6 ? kIpv6Header : kIpv4Header));
}

}  // namespace taco::harp
