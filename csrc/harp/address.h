// The opaque bytes a process publishes so that others can reach it, and what is in them: who it is,
// which host it is on, its UDP addresses and its shared-memory socket. They contain the secret that
// peers must show, so they travel through the rendezvous store only.
//
// Pure functions; any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "harp/nic.h"
#include "harp/session/session_host.h"
#include "harp/shm/endpoint.h"

struct sockaddr;

namespace taco::harp {

// The network that an interface reaches without a router: all addresses that share so many bits
// with its own. 0: not known.
struct OwnNetwork {
  std::uint32_t interface = 0;  // its index
  int prefix = 0;
};

struct PathAddress {
  Endpoint endpoint;
  std::uint32_t mtu = 0;
  std::uint32_t mbits = 0;  // interface speed, 0: unknown
};

struct Address {
  std::uint64_t incarnation = 0;
  Secret secret{};
  std::uint32_t pid = 0;
  bool has_shm = false;
  ShmAddress shm;
  std::string host_id;    // see host_identity.h
  std::string host_name;  // for messages only, never resolved
  std::vector<PathAddress> paths;
};

inline constexpr std::size_t kMaxAddressBytes = 1024;
inline constexpr std::size_t kMaxPaths = 16;

// Paths beyond kMaxPaths and the ends of very long names are left out.
std::string encode(const Address& address);
// kInvalidArgument: damaged. kVersionMismatch: names both versions.
Result<Address> decode(std::string_view bytes);

// "10.0.0.2:41234 (pid 77 on nodeb)"
std::string describe(const Address& address, const Endpoint& endpoint);

// "10.0.0.2:41234", "[fd00::2]:41234"; without the port when it is 0.
std::string to_string(const Endpoint& endpoint);
Endpoint endpoint_of(const sockaddr* address);
const sockaddr* sockaddr_of(const Endpoint& endpoint);
// 4 or 16, in network order.
std::span<const std::byte> address_bytes(const Endpoint& endpoint);
std::uint16_t port_of(const Endpoint& endpoint);
void set_port(Endpoint& endpoint, std::uint16_t port);
// As records carry them: an IPv6 address, or an IPv4 one mapped into it; the port in network order.
std::array<std::byte, 16> mapped_address(const Endpoint& endpoint);
std::uint16_t wire_port_of(const Endpoint& endpoint);
Endpoint endpoint_from(const std::array<std::byte, 16>& address, std::uint16_t wire_port);
// Whether others may be able to reach the address of an interface: no loopback, link-local or
// multicast address, nor "any", and with a port.
bool is_usable(const Endpoint& endpoint);
bool is_loopback(const Endpoint& endpoint);
bool is_link_local(const Endpoint& endpoint);
bool same_host_address(const Endpoint& a, const Endpoint& b);  // ports aside
// Equal in the first `prefix` bits.
bool same_network(const Endpoint& a, const Endpoint& b, int prefix);
// The UDP payload that fits the MTU of an interface with such an address.
std::size_t max_datagram(const Endpoint& address, std::size_t mtu);
// The same, where it is more than fits (NicAddress); 0 elsewhere.
std::size_t whole_datagram(const Endpoint& address, std::size_t mtu);

}  // namespace taco::harp
