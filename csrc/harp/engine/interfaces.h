// The choice of the network addresses that this process uses and publishes, of those that a Network
// has. Its routes decide, unless the user names interfaces. Loopback is never chosen silently. How
// peers are reached: routes.h.
//
// Any thread; may ask the resolver about the master's name.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "harp/address.h"
#include "harp/network.h"
#include "harp/nic.h"

namespace taco::harp {

// Another interface is on the same network: then the kernel would send by one of them only.
bool shares_network(const Interface& interface, const std::vector<Interface>& all);

// Addresses of a host name or a numeric address; empty when it does not resolve.
std::vector<Endpoint> resolve(const std::string& host);

struct InterfaceWish {
  std::vector<std::string> names;     // exactly these, in order
  std::vector<std::string> excluded;  // all but these
  std::vector<Endpoint> master;       // where the rendezvous store lives; may be unknown
};

// "eth0,eth1" names interfaces, "^docker0,^lo" excludes them; a mixture is kInvalidArgument.
Status parse_interface_names(const std::string& text, std::vector<std::string>* names,
                             std::vector<std::string>* excluded);

// Best first. Unless names are given: the one that leads to the master, then those that are ways of
// their own. kInvalidArgument: a named interface does not exist or has no address; the text lists
// those that exist.
Result<std::vector<Interface>> choose_interfaces(const std::vector<Interface>& all,
                                                 const InterfaceWish& wish,
                                                 const RouteLookup& route);

// Those of the names that are given which are usable now, or what choose_interfaces() chooses: once
// a job runs, nothing is wrong with one that is not there, or not yet. No loopback.
std::vector<Interface> interfaces_by_now(const std::vector<Interface>& all,
                                         const InterfaceWish& wish, const RouteLookup& route);

// The ports that a process sends from: first one port at each address, then a second one, as far as
// there may be so many. The n-th is the local path of that number.
struct LocalPort {
  Interface interface;
  int port = 0;  // of its address's: 0 is the first
};
std::vector<LocalPort> spread_ports(const std::vector<Interface>& chosen, int ports);
// How many ports to open at each address for so many paths: of several, one that is slow can be
// moved to another. Peers are told of the first `paths` only.
int ports_for(int paths);

// Why an interface is not among those that were chosen, for people to read.
std::string why_not_chosen(const Interface& interface, const std::vector<Interface>& chosen,
                           const InterfaceWish& wish);

}  // namespace taco::harp
