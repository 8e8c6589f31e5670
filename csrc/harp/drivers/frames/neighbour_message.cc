#include "harp/drivers/frames/neighbour_message.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/assert.h"
#include "harp/address.h"
#include "harp/drivers/frames/internet_checksum.h"

namespace taco::harp {

namespace {

using Kind = NeighbourMessage::Kind;
using Ipv6Address = std::array<std::byte, 16>;

constexpr std::size_t kArpBytes = 28;
constexpr std::uint16_t kArpEthernet = 1, kArpRequest = 1, kArpReply = 2;
constexpr std::byte kSolicitationType{135}, kAdvertisementType{136};
constexpr std::byte kSourceMacOption{1}, kTargetMacOption{2};
constexpr std::size_t kNeighbourBytes = 24;  // of ICMPv6, before its options
constexpr std::size_t kOptionUnit = 8;
constexpr std::byte kFromNeighbour{255};  // the hop limit, which every router lowers
constexpr std::byte kSolicited{0x40}, kOverride{0x20};

MacAddress mac_at(std::span<const std::byte> from, std::size_t at) {
  MacAddress mac;
  std::ranges::copy(from.subspan(at, mac.size()), mac.begin());
  return mac;
}

bool is_single(const MacAddress& mac) {
  return (mac[0] & std::byte{1}) == std::byte{0} && mac != MacAddress{};
}

std::optional<NeighbourMessage> parse_arp(std::span<const std::byte> packet) {
  if (packet.size() < kArpBytes) return std::nullopt;
  const bool is_ethernet = load_number(packet, 0) == kArpEthernet && packet[4] == std::byte{6};
  const bool is_ipv4 = load_number(packet, 2) == kEtherTypeIpv4 && packet[5] == std::byte{4};
  const std::uint16_t operation = load_number(packet, 6);
  if (!is_ethernet || !is_ipv4 || (operation != kArpRequest && operation != kArpReply)) {
    return std::nullopt;
  }
  NeighbourMessage message;
  message.kind = operation == kArpRequest ? Kind::kSolicitation : Kind::kAdvertisement;
  message.mac = mac_at(packet, 8);
  message.sender = endpoint_of_address(packet.subspan(14, 4), 0);
  message.subject =
      operation == kArpRequest ? endpoint_of_address(packet.subspan(24, 4), 0) : message.sender;
  return message;
}

struct MacOption {
  bool is_there = false;
  MacAddress mac{};
};

// None: the options are damaged.
std::optional<MacOption> find_mac_option(std::span<const std::byte> options, std::byte wanted) {
  MacOption found;
  while (!options.empty()) {
    if (options.size() < kOptionUnit) return std::nullopt;
    const std::size_t bytes = kOptionUnit * std::to_integer<std::size_t>(options[1]);
    if (bytes == 0 || bytes > options.size()) return std::nullopt;
    if (options[0] == wanted && bytes == kOptionUnit) found = {true, mac_at(options, 2)};
    options = options.subspan(bytes);
  }
  return found;
}

std::uint16_t icmpv6_sum(std::span<const std::byte> source, std::span<const std::byte> destination,
                         std::span<const std::byte> message) {
  InternetChecksum sum;
  sum.add(source);
  sum.add(destination);
  sum.add_number(static_cast<std::uint16_t>(message.size()));
  sum.add_number(kIcmpv6Protocol);
  sum.add(message);
  return sum.complement();
}

std::optional<NeighbourMessage> parse_discovery(std::span<const std::byte> packet,
                                                const MacAddress& frame_source) {
  if (packet.size() < kIpv6Header + kNeighbourBytes || (packet[0] >> 4) != std::byte{6} ||
      packet[6] != std::byte{kIcmpv6Protocol} || packet[7] != kFromNeighbour) {
    return std::nullopt;
  }
  const std::size_t bytes = load_number(packet, 4);
  if (bytes < kNeighbourBytes || kIpv6Header + bytes > packet.size()) return std::nullopt;
  const std::span<const std::byte> icmp = packet.subspan(kIpv6Header, bytes);
  const bool solicits = icmp[0] == kSolicitationType;
  if ((!solicits && icmp[0] != kAdvertisementType) || icmp[1] != std::byte{0}) return std::nullopt;
  if (icmpv6_sum(packet.subspan(8, 16), packet.subspan(24, 16), icmp) != 0) return std::nullopt;
  const auto option = find_mac_option(icmp.subspan(kNeighbourBytes),
                                      solicits ? kSourceMacOption : kTargetMacOption);
  if (!option) return std::nullopt;
  NeighbourMessage message;
  message.kind = solicits ? Kind::kSolicitation : Kind::kAdvertisement;
  message.sender = endpoint_of_address(packet.subspan(8, 16), 0);
  message.subject = endpoint_of_address(icmp.subspan(8, 16), 0);
  message.mac = option->is_there ? option->mac : frame_source;
  return message;
}

std::size_t write_arp(const MacAddress& to, std::uint16_t operation, const MacAddress& own_mac,
                      const Endpoint& own, const MacAddress& target_mac, const Endpoint& target,
                      std::span<std::byte> frame) {
  write_ethernet(to, own_mac, kEtherTypeArp, frame);
  const std::span<std::byte> packet = frame.subspan(kEthernetHeader, kArpBytes);
  store_number(packet, 0, kArpEthernet);
  store_number(packet, 2, kEtherTypeIpv4);
  packet[4] = std::byte{6};
  packet[5] = std::byte{4};
  store_number(packet, 6, operation);
  std::ranges::copy(own_mac, packet.begin() + 8);
  std::ranges::copy(address_bytes(own), packet.begin() + 14);
  std::ranges::copy(target_mac, packet.begin() + 18);
  std::ranges::copy(address_bytes(target), packet.begin() + 24);
  return kEthernetHeader + kArpBytes;
}

struct DiscoveryMessage {
  std::byte type, flags, option;
  std::span<const std::byte> destination;
  MacAddress destination_mac;
  const Endpoint& subject;
};

// With the own MAC address in an option.
std::size_t write_discovery(const DiscoveryMessage& message, const MacAddress& own_mac,
                            const Endpoint& own, std::span<std::byte> frame) {
  constexpr std::size_t kBytes = kNeighbourBytes + kOptionUnit;
  write_ethernet(message.destination_mac, own_mac, kEtherTypeIpv6, frame);
  const std::span<std::byte> packet = frame.subspan(kEthernetHeader, kIpv6Header + kBytes);
  std::ranges::fill(packet, std::byte{0});
  packet[0] = std::byte{0x60};
  store_number(packet, 4, kBytes);
  packet[6] = std::byte{kIcmpv6Protocol};
  packet[7] = kFromNeighbour;
  std::ranges::copy(address_bytes(own), packet.begin() + 8);
  std::ranges::copy(message.destination, packet.begin() + 24);
  const std::span<std::byte> icmp = packet.subspan(kIpv6Header);
  icmp[0] = message.type;
  icmp[4] = message.flags;
  std::ranges::copy(address_bytes(message.subject), icmp.begin() + 8);
  icmp[kNeighbourBytes] = message.option;
  icmp[kNeighbourBytes + 1] = std::byte{1};
  std::ranges::copy(own_mac, icmp.begin() + kNeighbourBytes + 2);
  const std::uint16_t sum = icmpv6_sum(address_bytes(own), message.destination, icmp);
  std::memcpy(&icmp[2], &sum, sizeof sum);
  return kEthernetHeader + packet.size();
}

// ff02::1:ffXX:XXXX, with the last three bytes of the address.
Ipv6Address solicited_node_group(const Endpoint& subject) {
  Ipv6Address group{std::byte{0xff}, std::byte{2}};
  group[11] = std::byte{1};
  group[12] = std::byte{0xff};
  std::ranges::copy(address_bytes(subject).last(3), group.begin() + 13);
  return group;
}

}  // namespace

std::optional<NeighbourMessage> parse_neighbour_message(std::span<const std::byte> frame) {
  const auto ethernet = parse_ethernet(frame);
  if (!ethernet) return std::nullopt;
  const std::span<const std::byte> packet = frame.subspan(ethernet->bytes);
  std::optional<NeighbourMessage> message;
  if (ethernet->type == kEtherTypeArp) message = parse_arp(packet);
  if (ethernet->type == kEtherTypeIpv6) message = parse_discovery(packet, ethernet->source);
  // A group's MAC address for a single host's would have everything sent to all.
  if (message && (!is_single(message->mac) || is_nobodys(message->subject))) return std::nullopt;
  return message;
}

std::size_t write_solicitation(const MacAddress& own_mac, const Endpoint& own,
                               const Endpoint& subject, std::span<std::byte> frame) {
  TACO_ASSERT(frame.size() >= kMaxNeighbourFrame);
  if (!is_ipv6(subject)) {
    return write_arp(kBroadcastMac, kArpRequest, own_mac, own, MacAddress{}, subject, frame);
  }
  const Ipv6Address group = solicited_node_group(subject);
  return write_discovery(
      {kSolicitationType, std::byte{0}, kSourceMacOption, group, multicast_mac(group), subject},
      own_mac, own, frame);
}

std::size_t write_advertisement(const MacAddress& own_mac, const Endpoint& own,
                                const NeighbourMessage& solicitation, std::span<std::byte> frame) {
  TACO_ASSERT(frame.size() >= kMaxNeighbourFrame);
  const Endpoint& to = solicitation.sender;
  if (!is_ipv6(own)) {
    return write_arp(solicitation.mac, kArpReply, own_mac, own, solicitation.mac, to, frame);
  }
  // A neighbour that has no address yet hears what is sent to all nodes.
  constexpr Ipv6Address kAllNodes{
      std::byte{0xff}, std::byte{2}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {},
      std::byte{1}};
  if (is_nobodys(to)) {
    return write_discovery(
        {kAdvertisementType, kOverride, kTargetMacOption, kAllNodes, multicast_mac(kAllNodes), own},
        own_mac, own, frame);
  }
  return write_discovery({kAdvertisementType, kSolicited | kOverride, kTargetMacOption,
                          address_bytes(to), solicitation.mac, own},
                         own_mac, own, frame);
}

MacAddress solicited_node_mac(const Endpoint& subject) {
  TACO_ASSERT(is_ipv6(subject));
  return multicast_mac(solicited_node_group(subject));
}

}  // namespace taco::harp
