#include "harp/drivers/frames/frame_link.h"

#include <algorithm>

#include "harp/drivers/frames/ethernet.h"

namespace taco::harp {

namespace {

const Endpoint* gateway_of(const FrameLink& link, const Endpoint& destination) {
  const auto found = std::ranges::find_if(link.gateways, [&](const Endpoint& gateway) {
    return is_ipv6(gateway) == is_ipv6(destination);
  });
  return found == link.gateways.end() ? nullptr : &*found;
}

}  // namespace

// A link is up for others even while nobody is at its other end yet: a memif server waits for its
// client.
std::vector<Interface> interfaces_of(std::span<const FrameLink> links) {
  std::vector<Interface> all;
  std::uint32_t index = 0;
  for (const FrameLink& link : links) {
    ++index;
    for (const FrameLink::Own& own : link.addresses) {
      Interface& made = all.emplace_back();
      made.name = link.name;
      made.address = own.address;
      made.up = true;
      made.mtu = static_cast<std::uint32_t>(link.port->info().mtu);
      made.mbits = link.port->info().mbits;
      made.hardware_address = hardware_number(link.port->info().mac);
      made.network = {index, own.prefix};
    }
  }
  return all;
}

std::vector<Endpoint> sources_towards(std::span<const FrameLink> links,
                                      const Endpoint& destination) {
  std::vector<Endpoint> sources;
  for (const bool by_router : {false, true}) {
    for (const FrameLink& link : links) {
      for (const FrameLink::Own& own : link.addresses) {
        if (is_ipv6(own.address) != is_ipv6(destination)) continue;
        const bool leads = by_router ? gateway_of(link, destination) != nullptr
                                     : same_network(own.address, destination, own.prefix);
        if (!leads) continue;
        sources.push_back(own.address);
        break;
      }
    }
    if (!sources.empty()) break;
  }
  return sources;
}

std::optional<Endpoint> next_hop(const FrameLink& link, const Endpoint& from,
                                 const Endpoint& destination) {
  for (const FrameLink::Own& own : link.addresses) {
    if (!same_host_address(own.address, from) ||
        !same_network(own.address, destination, own.prefix))
      continue;
    Endpoint hop = destination;
    set_port(hop, 0);
    return hop;
  }
  if (const Endpoint* const gateway = gateway_of(link, destination)) return *gateway;
  return std::nullopt;
}

}  // namespace taco::harp
