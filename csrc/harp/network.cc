#include "harp/network.h"

namespace taco::harp {

std::uint64_t hardware_number(std::span<const std::byte> address) {
  std::uint64_t number = 0;
  for (const std::byte each : address) number = number << 8 | std::to_integer<std::uint64_t>(each);
  return number;
}

const Interface* holder_of(const std::vector<Interface>& all, const Endpoint& address) {
  for (const Interface& interface : all) {
    if (same_host_address(interface.address, address)) return &interface;
  }
  return nullptr;
}

bool is_publishable(const Interface& interface) {
  return interface.up && !is_link_local(interface.address);
}

bool is_on_network(const Interface& interface, const Endpoint& destination) {
  return interface.network.prefix > 0 &&
         same_network(interface.address, destination, interface.network.prefix);
}

}  // namespace taco::harp
