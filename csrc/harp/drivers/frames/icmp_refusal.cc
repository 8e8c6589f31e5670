#include "harp/drivers/frames/icmp_refusal.h"

#include <utility>

#include "harp/address.h"
#include "harp/drivers/frames/ethernet.h"

namespace taco::harp {

namespace {

constexpr std::byte kIcmpProtocol{1};
constexpr std::size_t kIcmpHeader = 8;
// Type and code of "port unreachable".
constexpr std::uint16_t kIpv4Refused = 0x0303, kIpv6Refused = 0x0104;

// A packet's protocol, addresses and what follows its header, as far as it is there.
struct Packet {
  std::byte protocol{};
  Endpoint source, destination;
  std::span<const std::byte> rest;
};

std::optional<Packet> read_packet(std::span<const std::byte> bytes, std::uint16_t type) {
  Packet packet;
  std::size_t header = kIpv6Header;
  if (type == kEtherTypeIpv4) {
    if (bytes.size() < kIpv4Header) return std::nullopt;
    header = 4 * std::to_integer<std::size_t>(bytes[0] & std::byte{0xf});
    // Only the first fragment of several has the ports.
    if (header < kIpv4Header || (load_number(bytes, 6) & 0x1fff) != 0) return std::nullopt;
    packet.protocol = bytes[9];
    packet.source = endpoint_of_address(bytes.subspan(12, 4), 0);
    packet.destination = endpoint_of_address(bytes.subspan(16, 4), 0);
  } else if (type == kEtherTypeIpv6) {
    if (bytes.size() < kIpv6Header) return std::nullopt;
    packet.protocol = bytes[6];
    packet.source = endpoint_of_address(bytes.subspan(8, 16), 0);
    packet.destination = endpoint_of_address(bytes.subspan(24, 16), 0);
  } else {
    return std::nullopt;
  }
  if (header > bytes.size()) return std::nullopt;
  packet.rest = bytes.subspan(header);
  return packet;
}

}  // namespace

std::optional<IcmpRefusal> parse_icmp_refusal(std::span<const std::byte> frame) {
  const auto ethernet = parse_ethernet(frame);
  if (!ethernet) return std::nullopt;
  const auto outer = read_packet(frame.subspan(ethernet->bytes), ethernet->type);
  const bool v6 = ethernet->type == kEtherTypeIpv6;
  if (!outer || outer->protocol != (v6 ? std::byte{kIcmpv6Protocol} : kIcmpProtocol) ||
      outer->rest.size() < kIcmpHeader ||
      load_number(outer->rest, 0) != (v6 ? kIpv6Refused : kIpv4Refused)) {
    return std::nullopt;
  }
  const auto quoted = read_packet(outer->rest.subspan(kIcmpHeader), ethernet->type);
  if (!quoted || quoted->protocol != std::byte{kUdpProtocol} ||
      quoted->rest.size() < kUdpHeaderBytes) {
    return std::nullopt;
  }
  IcmpRefusal found;
  found.source = quoted->source;
  set_port(found.source, load_number(quoted->rest, 0));
  found.refusal.destination = quoted->destination;
  set_port(found.refusal.destination, load_number(quoted->rest, 2));
  const std::span<const std::byte> datagram = quoted->rest.subspan(kUdpHeaderBytes);
  found.refusal.quoted.assign(datagram.begin(), datagram.end());
  return found;
}

}  // namespace taco::harp
