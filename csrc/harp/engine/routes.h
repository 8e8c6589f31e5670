// Routes to a peer: from which of this host's addresses it can be reached, and over which paths.
// The kernel's routes decide, with one exception: of two interfaces on one network the kernel sends
// everything by one, and both are used here.
//
// Any thread.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "base/status.h"
#include "harp/address.h"
#include "harp/nic.h"

namespace taco::harp {

struct Interface;

// The addresses from which this host reaches `destination`: first the one that the kernel would
// choose, then those of other interfaces on that same network. Empty: there is no route.
using RouteLookup = std::function<std::vector<Endpoint>(const Endpoint& destination)>;
std::vector<Endpoint> kernel_routes(const Endpoint& destination);
// For thousands of destinations at once: while one of these lives, this thread's kernel_routes()
// lists the host's addresses once, and asks by sockets that it keeps. At most one a thread.
class RoutesOfOneMoment {
 public:
  RoutesOfOneMoment();
  ~RoutesOfOneMoment();
  RoutesOfOneMoment(const RoutesOfOneMoment&) = delete;
  RoutesOfOneMoment& operator=(const RoutesOfOneMoment&) = delete;

  const std::vector<Interface>& addresses();
  int socket_of(int family);  // -1: the kernel has none

 private:
  std::unique_ptr<const std::vector<Interface>> addresses_;
  int v4_ = -1, v6_ = -1;
};

// Whether the kernel hands what goes there to a router. Routers, unlike switches, tend to have
// several links to choose from (ECMP). False where the kernel does not say.
using RouterLookup = std::function<bool(const Endpoint& destination)>;
bool crosses_router(const Endpoint& destination);

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
