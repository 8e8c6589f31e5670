#include "harp/drivers/kernel/kernel_interfaces.h"

#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <bit>
#include <charconv>
#include <map>
#include <string_view>
#include <utility>

#include "base/descriptors.h"
#include "base/file.h"

namespace taco::harp {

namespace {

// ARPHRD_IP6GRE of <linux/if_arp.h>, which does not go with the system's <net/if_arp.h>.
constexpr int kGreOverIpv6 = 823;

// Reads a number of a device; `fallback` when there is none (speed of a virtual device).
std::uint32_t read_attribute(const std::string& folder, const char* attribute,
                             std::uint32_t fallback) {
  const std::string text = read_file(folder + "/" + attribute);
  std::uint32_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value == 0 ? fallback : value;
}

void describe_link(Interface* interface) {
  const std::string folder = kDevices + ("/" + interface->name);
  interface->network.interface = if_nametoindex(interface->name.c_str());
  interface->mtu = read_attribute(folder, "mtu", 1500);
  interface->mbits = read_attribute(folder, "speed", 0);
  interface->overlay = !interface->loopback && is_overlay(interface->name);
}

void copy_link(const Interface& from, Interface* to) {
  to->network.interface = from.network.interface;
  to->mtu = from.mtu;
  to->mbits = from.mbits;
  to->overlay = from.overlay;
}

int prefix_of(const sockaddr* netmask) {
  if (netmask == nullptr) return 0;
  int bits = 0;
  const Endpoint mask = endpoint_of(netmask);
  for (const std::byte each : address_bytes(mask)) {
    bits += std::popcount(std::to_integer<unsigned>(each));
  }
  return bits;
}

void drop_unready(std::vector<Interface>& all) {
  std::erase_if(all, [](const Interface& interface) {
    if (sockaddr_of(interface.address)->sa_family != AF_INET6) return false;
    if (!interface.up || interface.loopback || is_link_local(interface.address)) return false;
    const int fd = socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    const int bound = bind(fd, sockaddr_of(interface.address), interface.address.size);
    const bool unready = fd >= 0 && bound != 0 && errno == EADDRNOTAVAIL;
    if (fd >= 0) close(fd);
    return unready;
  });
}

}  // namespace

bool is_overlay(const std::string& interface, const char* devices) {
  const std::string folder = devices + ("/" + interface);
  if (access((folder + "/bridge").c_str(), F_OK) == 0) return true;
  if (access((folder + "/tun_flags").c_str(), F_OK) == 0) return true;
  const std::string described = read_file(folder + "/uevent");
  for (const char* kind : {"vxlan", "geneve", "wireguard"}) {
    if (described.find(std::string("DEVTYPE=") + kind) != std::string::npos) return true;
  }
  // Tunnels that are not tied to an interface say that they lead through none (gretap says no
  // more).
  if (read_file(folder + "/iflink").starts_with("0")) return true;
  // Those of IP in IP say so by the kind of their frames.
  switch (read_attribute(folder, "type", ARPHRD_ETHER)) {
    case ARPHRD_TUNNEL:
    case ARPHRD_TUNNEL6:
    case ARPHRD_SIT:
    case ARPHRD_IPGRE:
    case kGreOverIpv6:
      return true;
    default:
      return false;
  }
}

Result<std::vector<Interface>> list_addresses() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) {
    return Status(Code::kResource, "cannot list network interfaces: " + system_error_text(errno));
  }
  std::vector<Interface> interfaces;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr) continue;
    const int family = entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    Interface interface;
    interface.name = entry->ifa_name;
    interface.address = endpoint_of(entry->ifa_addr);
    interface.up = (entry->ifa_flags & IFF_UP) != 0 && (entry->ifa_flags & IFF_RUNNING) != 0;
    interface.loopback = (entry->ifa_flags & IFF_LOOPBACK) != 0;
    interface.network.prefix = prefix_of(entry->ifa_netmask);
    interfaces.push_back(std::move(interface));
  }
  freeifaddrs(list);
  return interfaces;
}

Result<std::vector<Interface>> list_interfaces() {
  auto all = list_addresses();
  if (!all.ok()) return all;
  drop_unready(all.value());
  // The kernel is asked once for each link: reading a speed waits for a lock of all its links.
  std::map<std::string_view, const Interface*> known;
  for (Interface& interface : all.value()) {
    const auto [first, is_new] = known.try_emplace(interface.name, &interface);
    if (is_new) {
      describe_link(&interface);
    } else {
      copy_link(*first->second, &interface);
    }
  }
  return all;
}

}  // namespace taco::harp
