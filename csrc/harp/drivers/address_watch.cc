#include "harp/drivers/address_watch.h"

#include <errno.h>
#include <ifaddrs.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <string.h>
#include <sys/socket.h>

#include <array>
#include <string>

#include "base/fork.h"
#include "harp/address.h"

namespace taco::harp {

Result<std::unique_ptr<AddressWatch>> AddressWatch::open() {
  const int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_ROUTE);
  if (fd < 0) {
    return Status(Code::kResource, std::string("cannot open a netlink socket: ") + strerror(errno));
  }
  close_on_fork(fd);
  std::unique_ptr<AddressWatch> watch(new AddressWatch(fd));
  sockaddr_nl groups{};
  groups.nl_family = AF_NETLINK;
  groups.nl_groups = RTMGRP_LINK | RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR;
  if (bind(fd, reinterpret_cast<const sockaddr*>(&groups), sizeof groups) != 0) {
    return Status(Code::kResource, std::string("cannot bind a netlink socket: ") + strerror(errno));
  }
  return watch;
}

AddressWatch::~AddressWatch() { close_now(fd_); }

// The contents of the messages do not matter: after any of them all addresses are looked at. So it
// does no harm when some did not fit the socket's buffer (ENOBUFS).
bool AddressWatch::take_change() {
  std::array<std::byte, 4096> message;
  bool changed = false;
  for (;;) {
    const ssize_t got = recv(fd_, message.data(), message.size(), 0);
    if (got < 0 && errno != ENOBUFS && errno != EINTR) return changed;
    changed = true;
  }
}

std::optional<std::uint32_t> missing_of(std::span<const NicAddress> addresses) {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return std::nullopt;
  std::uint32_t missing = (std::uint32_t{1} << addresses.size()) - 1;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr) continue;
    const int family = entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    if ((entry->ifa_flags & IFF_UP) == 0 || (entry->ifa_flags & IFF_RUNNING) == 0) continue;
    const Endpoint held = endpoint_of(entry->ifa_addr);
    for (std::size_t i = 0; i < addresses.size(); ++i) {
      if (same_host_address(addresses[i].endpoint, held)) missing &= ~(std::uint32_t{1} << i);
    }
  }
  freeifaddrs(list);
  return missing;
}

}  // namespace taco::harp
