// Routes to a peer: from which of this host's addresses it can be reached, and over which paths.
// What the network says of each address decides.
//
// Pure functions; any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "harp/address.h"
#include "harp/network.h"

namespace taco::harp {

// How many ports each address has for paths: as many as asked for; or, if that is 0, several where
// one of the addresses of `master`, which stands for all peers, is behind a router. Where firewalls
// may be laid out for single ports (`first_port` is not 0), one.
int ports_wanted(std::int64_t asked, std::int64_t first_port, const std::vector<Endpoint>& master,
                 const RouterLookup& router);

// How to reach a peer: one of our sockets and one of its addresses.
struct Route {
  std::uint32_t local_path = 0;
  PathAddress remote;
};
// The best first: the first of the peer's addresses that a route leads to from one of ours. Then,
// for a peer on another host, whatever else is a way of its own: from another of our addresses to
// another of the peer's. Then by more ports, as many as either side has at these addresses; by one
// only where no router is crossed, if there is `router` to ask. kRendezvous when only loopback
// would do and the peer is not on this host.
Result<std::vector<Route>> choose_routes(const std::vector<PathAddress>& locals,
                                         const Address& peer, bool same_host,
                                         const RouteLookup& route,
                                         const RouterLookup& router = nullptr);

}  // namespace taco::harp
