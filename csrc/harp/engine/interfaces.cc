#include "harp/engine/interfaces.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <set>

#include "base/conf_file.h"
#include "base/names.h"

namespace taco::harp {

namespace {

std::string names_of(const std::vector<Interface>& interfaces) {
  std::set<std::string> names;
  for (const Interface& interface : interfaces) {
    names.insert(interface.name + (interface.up ? "" : " (down)"));
  }
  std::string text;
  for (const std::string& name : names) append_name(text, name);
  return text.empty() ? "none" : text;
}

Endpoint any_global(int family) {
  // Documentation addresses: nothing is sent, only the default route is asked for.
  sockaddr_storage storage{};
  if (family == AF_INET6) {
    auto* address = reinterpret_cast<sockaddr_in6*>(&storage);
    address->sin6_family = AF_INET6;
    inet_pton(AF_INET6, "2001:db8::1", &address->sin6_addr);
    address->sin6_port = htons(9);
  } else {
    auto* address = reinterpret_cast<sockaddr_in*>(&storage);
    address->sin_family = AF_INET;
    inet_pton(AF_INET, "203.0.113.1", &address->sin_addr);
    address->sin_port = htons(9);
  }
  return endpoint_of(reinterpret_cast<const sockaddr*>(&storage));
}

Result<std::vector<Interface>> named_interfaces(const std::vector<Interface>& all,
                                                const std::vector<std::string>& names) {
  std::vector<Interface> chosen;
  for (const std::string& name : names) {
    bool found = false, usable = false;
    for (const Interface& interface : all) {
      if (interface.name != name) continue;
      found = true;
      // One that is named may be of one link only, as far as its address tells which.
      const bool v4 = sockaddr_of(interface.address)->sa_family == AF_INET;
      if (!interface.up || (!v4 && is_link_local(interface.address))) continue;
      usable = true;
      chosen.push_back(interface);
    }
    if (!found || !usable) {
      return Status(Code::kInvalidArgument,
                    "network interface \"" + name + "\" " +
                        (found ? "is down or has no usable address" : "does not exist") +
                        "; interfaces here: " + names_of(all) + " (TACO_IFNAME)" +
                        conf_origin("TACO_IFNAME", ""));
    }
  }
  return chosen;
}

// The address from which this host talks to the master, or the master's own if that is this host:
// all others find their way there. Null when nobody else could use it.
const Interface* towards(const Endpoint& master, const std::vector<Interface>& all,
                         const RouteLookup& route) {
  if (is_loopback(master)) return nullptr;
  const Interface* own = holder_of(all, master);
  if (own == nullptr) {
    const std::vector<Endpoint> sources = route(master);
    own = sources.empty() ? nullptr : holder_of(all, sources.front());
  }
  if (own == nullptr || own->loopback) return nullptr;
  // An IPv6 address of one link means nothing without the name that the link has on each host.
  const bool v6 = sockaddr_of(own->address)->sa_family == AF_INET6;
  return v6 && is_link_local(own->address) ? nullptr : own;
}

bool has_name(const std::vector<Interface>& interfaces, const std::string& name) {
  return std::any_of(interfaces.begin(), interfaces.end(),
                     [&](const Interface& interface) { return interface.name == name; });
}

// One address of each interface that may be a way of its own, that one first.
std::vector<Interface> with_other_ways(const Interface& first, const std::vector<Interface>& all) {
  std::vector<Interface> chosen{first};
  const auto family = sockaddr_of(first.address)->sa_family;
  for (const Interface& interface : all) {
    if (has_name(chosen, interface.name) || !is_publishable(interface) || interface.loopback ||
        interface.overlay)
      continue;
    if (sockaddr_of(interface.address)->sa_family == family) chosen.push_back(interface);
  }
  return chosen;
}

// Everything others could reach, best first: what leads to the master or is its own address, then
// the default route's interface, then the rest, loopback last: one address of it, since whoever can
// use it has them all. Bridges and tunnels only where there is nothing else: what crosses them
// crosses another interface, or leads nowhere.
std::vector<Interface> all_publishable(const std::vector<Interface>& all, const InterfaceWish& wish,
                                       const RouteLookup& route) {
  std::vector<Interface> chosen;
  auto add = [&](const Interface& interface) {
    if (!is_publishable(interface)) return;
    if (interface.loopback && has_name(chosen, interface.name)) return;
    if (std::count(wish.excluded.begin(), wish.excluded.end(), interface.name) != 0) return;
    for (const Interface& have : chosen) {
      if (same_host_address(have.address, interface.address)) return;
    }
    chosen.push_back(interface);
  };
  for (const Endpoint& master : wish.master) {
    if (const Interface* own = towards(master, all, route)) add(*own);
  }
  for (const int family : {AF_INET, AF_INET6}) {
    const std::vector<Endpoint> sources = route(any_global(family));
    const Interface* own = sources.empty() ? nullptr : holder_of(all, sources.front());
    if (own != nullptr && !own->loopback) add(*own);
  }
  for (const Interface& interface : all) {
    if (!interface.loopback && !interface.overlay) add(interface);
  }
  for (const bool loopback : {false, true}) {
    if (!loopback && !chosen.empty()) continue;
    for (const Interface& interface : all) {
      if (interface.loopback == loopback) add(interface);
    }
  }
  return chosen;
}

}  // namespace

// An interface without a carrier counts, too: the kernel's route by it stays, and may be preferred.
bool shares_network(const Interface& interface, const std::vector<Interface>& all) {
  return std::ranges::any_of(all, [&](const Interface& other) {
    return other.name != interface.name && !other.loopback &&
           is_on_network(interface, other.address) && is_on_network(other, interface.address);
  });
}

std::vector<Endpoint> resolve(const std::string& host) {
  std::vector<Endpoint> found;
  if (host.empty()) return found;
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* list = nullptr;
  if (getaddrinfo(host.c_str(), nullptr, &hints, &list) != 0) return found;
  for (const addrinfo* entry = list; entry != nullptr; entry = entry->ai_next) {
    if (entry->ai_family == AF_INET || entry->ai_family == AF_INET6) {
      found.push_back(endpoint_of(entry->ai_addr));
    }
  }
  freeaddrinfo(list);
  return found;
}

Status parse_interface_names(const std::string& text, std::vector<std::string>* names,
                             std::vector<std::string>* excluded) {
  std::size_t at = 0;
  while (at <= text.size() && !text.empty()) {
    const std::size_t comma = std::min(text.find(',', at), text.size());
    std::string name = text.substr(at, comma - at);
    at = comma + 1;
    const bool exclude = !name.empty() && name[0] == '^';
    if (exclude) name.erase(0, 1);
    if (name.empty()) {
      return Status(Code::kInvalidArgument,
                    setting_text("TACO_IFNAME", text) + ": an interface name is empty");
    }
    (exclude ? excluded : names)->push_back(name);
  }
  if (!names->empty() && !excluded->empty()) {
    return Status(Code::kInvalidArgument,
                  setting_text("TACO_IFNAME", text) +
                      " both names and excludes interfaces: write \"eth0,eth1\" or "
                      "\"^docker0,^lo\"");
  }
  return {};
}

Result<std::vector<Interface>> choose_interfaces(const std::vector<Interface>& all,
                                                 const InterfaceWish& wish,
                                                 const RouteLookup& route) {
  if (!wish.names.empty()) return named_interfaces(all, wish.names);
  if (wish.excluded.empty()) {
    for (const Endpoint& master : wish.master) {
      const Interface* own = towards(master, all, route);
      if (own != nullptr) return with_other_ways(*own, all);
    }
  }
  std::vector<Interface> chosen = all_publishable(all, wish, route);
  if (chosen.empty()) {
    return Status(Code::kInvalidArgument,
                  "no network interface is usable; interfaces here: " + names_of(all) +
                      (wish.excluded.empty()
                           ? ""
                           : " (TACO_IFNAME excludes some)" + conf_origin("TACO_IFNAME", "")));
  }
  return chosen;
}

std::vector<Interface> interfaces_by_now(const std::vector<Interface>& all,
                                         const InterfaceWish& wish, const RouteLookup& route) {
  std::vector<Interface> chosen;
  if (wish.names.empty()) {
    auto usable = choose_interfaces(all, wish, route);
    if (usable.ok()) chosen = std::move(usable).value();
  } else {
    std::ranges::copy_if(all, std::back_inserter(chosen), [&](const Interface& interface) {
      return is_publishable(interface) && std::ranges::count(wish.names, interface.name) != 0;
    });
  }
  std::erase_if(chosen, [](const Interface& interface) { return interface.loopback; });
  return chosen;
}

std::vector<LocalPort> spread_ports(const std::vector<Interface>& chosen, int ports) {
  std::vector<LocalPort> spread;
  for (int port = 0; port < ports; ++port) {
    for (const Interface& interface : chosen) {
      if (spread.size() < kMaxPaths) spread.push_back({interface, port});
    }
  }
  return spread;
}

int ports_for(int paths) { return paths > 1 ? 2 * paths : paths; }

std::string why_not_chosen(const Interface& interface, const std::vector<Interface>& chosen,
                           const InterfaceWish& wish) {
  const auto is_in = [&](const std::vector<std::string>& names) {
    return std::find(names.begin(), names.end(), interface.name) != names.end();
  };
  if (!interface.up) return "down";
  if (is_in(wish.excluded)) return "excluded by TACO_IFNAME";
  if (!wish.names.empty() && !is_in(wish.names)) return "not named in TACO_IFNAME";
  if (is_link_local(interface.address)) return "an address of one link only";
  if (interface.loopback) return "leads to no other host";
  if (has_name(chosen, interface.name)) return "another address of its interface is used";
  if (interface.overlay) return "a bridge or tunnel, which leads through another interface";
  return "not of the IP version by which MASTER_ADDR is reached";
}

}  // namespace taco::harp
