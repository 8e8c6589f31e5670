// One device's place in the network: its addresses, which hosts it reaches without a router, and
// the routers. For devices of which the kernel knows nothing, so that people have to say it.
//
// Pure functions; any thread.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "harp/address.h"
#include "harp/drivers/frames/frame_port.h"
#include "harp/network.h"

namespace taco::harp {

struct FrameLink {
  struct Own {
    Endpoint address;  // port 0
    int prefix = 0;
  };
  std::string name;
  std::vector<Own> addresses;
  std::vector<Endpoint> gateways;  // one for each version of IP, at most
  std::shared_ptr<FramePort> port;
};

std::vector<Interface> interfaces_of(std::span<const FrameLink> links);
// As a RouteLookup has them: first the addresses on the destination's own network, then those that
// have a router. Without either none leads there.
std::vector<Endpoint> sources_towards(std::span<const FrameLink> links,
                                      const Endpoint& destination);
// To whom a packet goes that is sent from that address of the link. None: nobody leads there.
std::optional<Endpoint> next_hop(const FrameLink& link, const Endpoint& from,
                                 const Endpoint& destination);

}  // namespace taco::harp
