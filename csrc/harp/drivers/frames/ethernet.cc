#include "harp/drivers/frames/ethernet.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstring>

#include "base/assert.h"
#include "harp/address.h"

namespace taco::harp {

namespace {

constexpr std::uint16_t kEtherTypeVlan = 0x8100;
constexpr std::uint16_t kEtherTypeServiceVlan = 0x88a8;
constexpr std::size_t kVlanTag = 4;
constexpr std::uint16_t kVlanMask = 0x0fff;

}  // namespace

std::uint16_t load_number(std::span<const std::byte> from, std::size_t at) {
  TACO_ASSERT(at + sizeof(std::uint16_t) <= from.size());
  std::uint16_t number;
  std::memcpy(&number, from.data() + at, sizeof number);
  return ntohs(number);
}

void store_number(std::span<std::byte> to, std::size_t at, std::uint16_t number) {
  TACO_ASSERT(at + sizeof number <= to.size());
  const std::uint16_t wire = htons(number);
  std::memcpy(to.data() + at, &wire, sizeof wire);
}

std::optional<EthernetHeader> parse_ethernet(std::span<const std::byte> frame) {
  if (frame.size() < kEthernetHeader) return std::nullopt;
  EthernetHeader header;
  std::ranges::copy(frame.first<6>(), header.destination.begin());
  std::ranges::copy(frame.subspan<6, 6>(), header.source.begin());
  header.type = load_number(frame, 12);
  header.bytes = kEthernetHeader;
  if (header.type == kEtherTypeVlan) {
    if (frame.size() < kEthernetHeader + kVlanTag) return std::nullopt;
    header.vlan = load_number(frame, 14) & kVlanMask;
    header.type = load_number(frame, 16);
    header.bytes += kVlanTag;
  }
  if (header.type == kEtherTypeVlan || header.type == kEtherTypeServiceVlan) return std::nullopt;
  return header;
}

bool is_for_host(const EthernetHeader& header, std::span<const MacAddress> own) {
  if (header.vlan != 0) return false;
  const MacAddress& to = header.destination;
  const bool is_group = (to[0] & std::byte{1}) != std::byte{0};
  return is_group || to == MacAddress{} || std::ranges::find(own, to) != own.end();
}

void write_ethernet(const MacAddress& destination, const MacAddress& source, std::uint16_t type,
                    std::span<std::byte> frame) {
  TACO_ASSERT(frame.size() >= kEthernetHeader);
  std::ranges::copy(destination, frame.begin());
  std::ranges::copy(source, frame.begin() + 6);
  store_number(frame, 12, type);
}

MacAddress multicast_mac(std::span<const std::byte, 16> group) {
  MacAddress mac{std::byte{0x33}, std::byte{0x33}};
  std::ranges::copy(group.last<4>(), mac.begin() + 2);
  return mac;
}

Endpoint endpoint_of_address(std::span<const std::byte> address, std::uint16_t port) {
  TACO_ASSERT(address.size() == sizeof(in_addr) || address.size() == sizeof(in6_addr));
  Endpoint made;
  if (address.size() == sizeof(in6_addr)) {
    auto* const v6 = reinterpret_cast<sockaddr_in6*>(made.bytes.data());
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(port);
    std::memcpy(&v6->sin6_addr, address.data(), sizeof v6->sin6_addr);
    made.size = sizeof *v6;
  } else {
    auto* const v4 = reinterpret_cast<sockaddr_in*>(made.bytes.data());
    v4->sin_family = AF_INET;
    v4->sin_port = htons(port);
    std::memcpy(&v4->sin_addr, address.data(), sizeof v4->sin_addr);
    made.size = sizeof *v4;
  }
  return made;
}

bool is_ipv6(const Endpoint& endpoint) { return sockaddr_of(endpoint)->sa_family == AF_INET6; }

bool is_nobodys(const Endpoint& endpoint) {
  const std::span<const std::byte> address = address_bytes(endpoint);
  const auto first = std::to_integer<unsigned>(address.front());
  if (!is_ipv6(endpoint)) return first == 0 || first >= 224;
  return first == 0xff ||
         std::ranges::all_of(address, [](std::byte b) { return b == std::byte{}; });
}

}  // namespace taco::harp
