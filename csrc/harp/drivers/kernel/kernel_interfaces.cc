#include "harp/drivers/kernel/kernel_interfaces.h"

#include <errno.h>
#include <linux/if_link.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>

#include "harp/drivers/kernel/device_queues.h"
#include "harp/drivers/kernel/netlink.h"

namespace taco::harp {

namespace {

// ARPHRD_IP6GRE of <linux/if_arp.h>, which does not go with the system's <net/if_arp.h>.
constexpr int kGreOverIpv6 = 823;

std::string attribute_text(std::span<const std::byte> value) {
  const auto* const text = reinterpret_cast<const char*>(value.data());
  return std::string(text, strnlen(text, value.size()));
}

// All but the address.
Interface read_link(std::span<const std::byte> body, const ifinfomsg& header) {
  Interface link;
  LinkKind kind{.frames = header.ifi_type};
  for_attributes(body, sizeof header, [&](int type, std::span<const std::byte> value) {
    if (type == IFLA_IFNAME) link.name = attribute_text(value);
    if (type == IFLA_MTU && attribute_number(value) != 0) link.mtu = attribute_number(value);
    if (type == IFLA_LINK) kind.has_lower = attribute_number(value) != 0;
    if (type != IFLA_LINKINFO) return;
    for_attributes(value, 0, [&](int inner, std::span<const std::byte> one) {
      if (inner == IFLA_INFO_KIND) kind.name = attribute_text(one);
    });
  });
  link.up = (header.ifi_flags & IFF_UP) != 0 && (header.ifi_flags & IFF_RUNNING) != 0;
  link.loopback = (header.ifi_flags & IFF_LOOPBACK) != 0;
  link.overlay = !link.loopback && is_overlay(kind);
  link.network.interface = static_cast<std::uint32_t>(header.ifi_index);
  return link;
}

using KernelLinks = std::unordered_map<std::uint32_t, Interface>;  // by index

Result<KernelLinks> list_links() {
  const auto listed = list_kernel_links();
  if (!listed.ok()) return listed.status();
  KernelLinks links;
  for_messages(listed.value(), [&](const nlmsghdr& each) {
    ifinfomsg header{};
    const std::span<const std::byte> body = body_of(each);
    if (each.nlmsg_type != RTM_NEWLINK || body.size() < sizeof header) return;
    memcpy(&header, body.data(), sizeof header);
    links[static_cast<std::uint32_t>(header.ifi_index)] = read_link(body, header);
  });
  return links;
}

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
std::optional<Interface> read_address(const nlmsghdr& message, const KernelLinks& links) {
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

Result<std::vector<Interface>> list_addresses() {
  const auto links = list_links();
  if (!links.ok()) return links.status();
  const auto listed = list_kernel_addresses();
  if (!listed.ok()) return listed.status();
  std::vector<Interface> interfaces;
  for_messages(listed.value(), [&](const nlmsghdr& each) {
    if (auto found = read_address(each, links.value())) interfaces.push_back(std::move(*found));
  });
  return interfaces;
}

Result<std::vector<Interface>> list_interfaces() {
  auto all = list_addresses();
  if (!all.ok()) return all;
  drop_unready(all.value());
  // The kernel is asked once for each link: reading a speed waits for a lock of all its links.
  std::unordered_map<std::uint32_t, std::uint32_t> known;
  for (Interface& interface : all.value()) {
    const auto [speed, is_new] = known.try_emplace(interface.network.interface);
    if (is_new) speed->second = device_mbits(interface.name);
    interface.mbits = speed->second;
  }
  return all;
}

}  // namespace taco::harp
