// The network as one driver offers it: the interfaces that it sends by, from which of their
// addresses a destination is reached, and the Nic that sends from them. Whoever wants to know such
// a thing asks here, never the kernel: a driver may have interfaces of which the kernel knows
// nothing. drivers/networks.h makes the one to use.
//
// Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "harp/address.h"
#include "harp/nic.h"

namespace taco::harp {

// One address of one interface.
struct Interface {
  std::string name;
  Endpoint address;  // port 0
  bool up = false;
  bool loopback = false;
  bool overlay = false;  // a bridge or a tunnel: what crosses it crosses another interface, too
  std::uint32_t mtu = 1500;
  std::uint32_t mbits = 0;             // 0: unknown
  std::string pci;                     // its PCI device, a folder of /sys; "": none
  std::uint64_t hardware_address = 0;  // 0: none
  OwnNetwork network;
};

// A hardware address as a number. The last eight bytes of those that are longer than Ethernet's, as
// InfiniBand's are, tell one port from another.
std::uint64_t hardware_number(std::span<const std::byte> address);
// The one that has that address; null: none.
const Interface* holder_of(const std::vector<Interface>& all, const Endpoint& address);
// Usable without a scope or a lease: what others can be told.
bool is_publishable(const Interface& interface);
// Reached from there without a router.
bool is_on_network(const Interface& interface, const Endpoint& destination);

struct NicOptions {
  struct Local {
    Endpoint address;        // port 0: any
    std::size_t mtu = 1500;  // of its interface
    bool spare = false;      // see NicAddress
    // Packets to this network leave by this interface, whatever the routes say. 0: as they say.
    OwnNetwork network;
  };
  std::vector<Local> locals;  // each becomes an address of the Nic, in this order
  // Returns the addresses that the host has by now and that may be used as well, as often as each
  // is to have ports; called when addresses have changed, on a thread of its own. Null: nothing but
  // `locals` ever is.
  std::function<std::vector<Local>()> find_more;
  std::size_t receive_buffer = 0;  // bytes; 0: as much as the system allows, within reason
  // The number of the engine that is to have the Nic, among so many of its process. Interfaces that
  // have queues give each engine its own.
  std::uint32_t engine = 0, engines = 1;
};

// The addresses from which this host reaches `destination`: first the one that the network would
// choose, then those of other interfaces that lead there as well. Empty: there is no route.
using RouteLookup = std::function<std::vector<Endpoint>(const Endpoint& destination)>;
// Whether a router hands on what goes there. Routers, unlike switches, tend to have several links
// to choose from (ECMP). False where nobody can say.
using RouterLookup = std::function<bool(const Endpoint& destination)>;

class Network {
 public:
  virtual ~Network() = default;

  virtual std::string_view name() const = 0;  // as TACO_HARP_DRIVER has it
  // All of this moment, but for addresses that cannot be used yet, or ever.
  virtual Result<std::vector<Interface>> interfaces() const = 0;
  // The routes of this moment, for as many destinations as there are to ask about. One thread asks,
  // and drops it with the moment.
  virtual RouteLookup routes() const = 0;
  virtual bool crosses_router(const Endpoint& destination) const = 0;
  // kInvalidArgument: its interfaces cannot be had by so many engines of a process, and which.
  virtual Status check_engines(std::uint32_t /*engines*/) const { return {}; }
  // kResource: an address is not of this host, or its port is taken.
  virtual Result<std::unique_ptr<Nic>> open(const NicOptions& options) const = 0;
};

}  // namespace taco::harp
