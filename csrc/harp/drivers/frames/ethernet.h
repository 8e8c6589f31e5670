// The outermost header of a frame, and numbers in network order as all headers hold them. For
// drivers that see whole frames.
//
// Pure functions; any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "harp/nic.h"

namespace taco::harp {

using MacAddress = std::array<std::byte, 6>;

inline constexpr MacAddress kBroadcastMac{std::byte{0xff}, std::byte{0xff}, std::byte{0xff},
                                          std::byte{0xff}, std::byte{0xff}, std::byte{0xff}};

inline constexpr std::uint16_t kEtherTypeIpv4 = 0x0800;
inline constexpr std::uint16_t kEtherTypeArp = 0x0806;
inline constexpr std::uint16_t kEtherTypeIpv6 = 0x86dd;
inline constexpr std::size_t kEthernetHeader = 14;
inline constexpr std::size_t kIpv4Header = 20;  // without options
inline constexpr std::size_t kIpv6Header = 40;
inline constexpr std::size_t kUdpHeaderBytes = 8;
inline constexpr std::uint8_t kUdpProtocol = 17;
inline constexpr std::uint8_t kIcmpv6Protocol = 58;

struct EthernetHeader {
  MacAddress destination{};
  MacAddress source{};
  std::uint16_t type = 0;  // of what follows the header
  std::uint16_t vlan = 0;  // 0: no tag, or one that says nothing but a priority
  std::size_t bytes = 0;   // of the header, a tag included
};

// With one VLAN tag (802.1Q) or none. None: the frame is too short, or has more tags.
std::optional<EthernetHeader> parse_ethernet(std::span<const std::byte> frame);
// For a host with those MAC addresses, on the network that frames without a tag are on. A VLAN is
// another network, whose hosts may have the same addresses; and a device that hears all groups, or
// everybody, hears what is for other hosts, too. Loopback interfaces bring frames to no address at
// all.
bool is_for_host(const EthernetHeader& header, std::span<const MacAddress> own);
// Fills the first kEthernetHeader bytes.
void write_ethernet(const MacAddress& destination, const MacAddress& source, std::uint16_t type,
                    std::span<std::byte> frame);

// A multicast address of IPv6 is sent to as this one.
MacAddress multicast_mac(std::span<const std::byte, 16> group);

std::uint16_t load_number(std::span<const std::byte> from, std::size_t at);
void store_number(std::span<std::byte> to, std::size_t at, std::uint16_t number);

// From 4 or 16 bytes in network order.
Endpoint endpoint_of_address(std::span<const std::byte> address, std::uint16_t port);
bool is_ipv6(const Endpoint& endpoint);
// Nobody's own address: multicast, broadcast, "this network".
bool is_nobodys(const Endpoint& endpoint);

}  // namespace taco::harp
