#include "harp/drivers/kernel/kernel_interfaces.h"

#include <errno.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "harp/drivers/kernel/device_queues.h"
#include "harp/drivers/kernel/netlink.h"
#include "harp/drivers/kernel/pci_device.h"

namespace taco::harp {

namespace {

// ARPHRD_IP6GRE of <linux/if_arp.h>, which does not go with the system's <net/if_arp.h>.
constexpr int kGreOverIpv6 = 823;

// All but the address, and what it takes to ask the device.
Interface interface_of(const KernelLink& link) {
  Interface made;
  made.name = link.name;
  made.up = (link.flags & IFF_UP) != 0 && (link.flags & IFF_RUNNING) != 0;
  made.loopback = (link.flags & IFF_LOOPBACK) != 0;
  made.overlay = !made.loopback && is_overlay({link.kind, link.frames, link.has_lower});
  if (link.mtu != 0) made.mtu = link.mtu;
  made.hardware_address = hardware_number(link.mac);
  made.network.interface = link.index;
  return made;
}

using KernelInterfaces = std::unordered_map<std::uint32_t, Interface>;  // by index

Endpoint kernel_address(const ifaddrmsg& header, std::span<const std::byte> bytes) {
  if (header.ifa_family == AF_INET && bytes.size() == sizeof(in_addr)) {
    sockaddr_in v4{};
    v4.sin_family = AF_INET;
    memcpy(&v4.sin_addr, bytes.data(), sizeof v4.sin_addr);
    return endpoint_of(reinterpret_cast<const sockaddr*>(&v4));
  }
  if (header.ifa_family != AF_INET6 || bytes.size() != sizeof(in6_addr)) return {};
  sockaddr_in6 v6{};
  v6.sin6_family = AF_INET6;
  memcpy(&v6.sin6_addr, bytes.data(), sizeof v6.sin6_addr);
  if (IN6_IS_ADDR_LINKLOCAL(&v6.sin6_addr)) v6.sin6_scope_id = header.ifa_index;
  return endpoint_of(reinterpret_cast<const sockaddr*>(&v6));
}

// None: it is of another family, or of an interface that has come since they were listed.
std::optional<Interface> read_address(const nlmsghdr& message, const KernelInterfaces& links) {
  ifaddrmsg header{};
  const std::span<const std::byte> body = body_of(message);
  if (message.nlmsg_type != RTM_NEWADDR || body.size() < sizeof header) return std::nullopt;
  memcpy(&header, body.data(), sizeof header);
  const auto link = links.find(header.ifa_index);
  if (link == links.end()) return std::nullopt;
  // Where both ends of a link have one, the other is its peer's.
  std::span<const std::byte> own, any;
  for_attributes(body, sizeof header, [&](int type, std::span<const std::byte> value) {
    if (type == IFA_LOCAL) own = value;
    if (type == IFA_ADDRESS) any = value;
  });
  Interface found = link->second;
  found.address = kernel_address(header, own.empty() ? any : own);
  found.network.prefix = header.ifa_prefixlen;
  if (found.address.size == 0) return std::nullopt;
  return found;
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

bool is_overlay(const LinkKind& kind) {
  for (const char* name : {"bridge", "tun", "vxlan", "geneve", "wireguard", "gretap", "ip6gretap",
                           "erspan", "ip6erspan"}) {
    if (kind.name == name) return true;
  }
  // Tunnels that are not tied to an interface say that they lead through none.
  if (!kind.has_lower) return true;
  // Those of IP in IP say so by the kind of their frames.
  switch (kind.frames) {
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

Result<std::vector<Interface>> list_addresses(std::span<const KernelLink> links) {
  KernelInterfaces known;
  for (const KernelLink& each : links) known.insert_or_assign(each.index, interface_of(each));
  const auto listed = list_kernel_addresses();
  if (!listed.ok()) return listed.status();
  std::vector<Interface> interfaces;
  for_messages(listed.value(), [&](const nlmsghdr& each) {
    if (auto found = read_address(each, known)) interfaces.push_back(std::move(*found));
  });
  return interfaces;
}

Result<std::vector<Interface>> list_addresses() {
  const auto links = list_kernel_links();
  return links.ok() ? list_addresses(links.value()) : links.status();
}

Result<std::vector<Interface>> list_interfaces() {
  const auto links = list_kernel_links();
  if (!links.ok()) return links.status();
  auto all = list_addresses(links.value());
  if (!all.ok()) return all;
  drop_unready(all.value());
  // The kernel is asked once for each link: reading a speed waits for a lock of all its links.
  struct Device {
    const KernelLink* link = nullptr;
    bool is_asked = false;
    std::uint32_t mbits = 0;
    std::string pci;
  };
  std::unordered_map<std::uint32_t, Device> devices;
  for (const KernelLink& link : links.value()) devices[link.index].link = &link;
  for (Interface& interface : all.value()) {
    Device& device = devices[interface.network.interface];
    if (!std::exchange(device.is_asked, true)) {
      device.mbits = device_mbits(interface.name);
      device.pci = pci_folder(*device.link);
    }
    interface.mbits = device.mbits;
    interface.pci = device.pci;
  }
  return all;
}

}  // namespace taco::harp
