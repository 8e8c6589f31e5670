#include "harp/drivers/kernel/kernel_routes.h"

#include <sys/socket.h>

#include <set>
#include <string>
#include <utility>

#include "harp/drivers/kernel/kernel_interfaces.h"
#include "harp/drivers/kernel/netlink.h"

namespace taco::harp {

namespace {

// A socket that is connected keeps its own address when it is connected again.
void disconnect(int fd) {
  sockaddr nobody{};
  nobody.sa_family = AF_UNSPEC;
  static_cast<void>(connect(fd, &nobody, sizeof nobody));  // of UDP, which has no way to fail
}

}  // namespace

std::vector<Endpoint> KernelRoutes::sources_of(const Endpoint& destination) {
  const auto first = choice_for(destination);
  if (!first) return {};
  if (!addresses_) {
    auto all = list_addresses();
    addresses_ = all.ok() ? std::move(all).value() : std::vector<Interface>();
  }
  return sources_towards(destination, *first, *addresses_);
}

std::optional<Endpoint> KernelRoutes::choice_for(const Endpoint& destination) {
  Endpoint target = destination;
  if (port_of(target) == 0) set_port(target, 9);
  const int fd = socket_of(sockaddr_of(target)->sa_family);
  if (fd < 0) return std::nullopt;
  std::optional<Endpoint> source;
  sockaddr_storage own{};
  socklen_t length = sizeof own;
  if (connect(fd, sockaddr_of(target), target.size) == 0 &&
      getsockname(fd, reinterpret_cast<sockaddr*>(&own), &length) == 0) {
    source = endpoint_of(reinterpret_cast<const sockaddr*>(&own));
    set_port(*source, 0);
  }
  disconnect(fd);
  return source;
}

int KernelRoutes::socket_of(int family) {
  OwnFd& fd = family == AF_INET6 ? v6_ : v4_;
  if (!fd) fd = OwnFd(socket(family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  return fd.get();
}

std::vector<Endpoint> sources_towards(const Endpoint& destination, const Endpoint& first,
                                      const std::vector<Interface>& all) {
  std::vector<Endpoint> sources{first};
  const Interface* const own = holder_of(all, first);
  if (own == nullptr || own->loopback || !is_on_network(*own, destination)) return sources;
  std::set<std::string> names{own->name};
  for (const Interface& each : all) {
    const bool leads =
        is_publishable(each) && !each.loopback && !each.overlay && is_on_network(each, destination);
    if (leads && names.insert(each.name).second) sources.push_back(each.address);
  }
  return sources;
}

// Should the kernel not answer, nobody waits. A route over several routers says which it takes for
// this destination.
bool crosses_router(const Endpoint& destination) {
  auto fd = open_netlink(0);
  if (!fd.ok()) return false;
  const std::span<const std::byte> address = address_bytes(destination);
  rtmsg header{};
  header.rtm_family = sockaddr_of(destination)->sa_family == AF_INET6 ? AF_INET6 : AF_INET;
  header.rtm_dst_len = static_cast<unsigned char>(8 * address.size());
  NetlinkRequest request(RTM_GETROUTE, 1, header);
  request.add(RTA_DST, address);
  NetlinkAnswer answer;
  const nlmsghdr* const route = ask_kernel(fd->get(), request, RTM_NEWROUTE, answer);
  if (route == nullptr) return false;
  bool names_gateway = false;
  for_attributes(body_of(*route), sizeof header, [&](int type, std::span<const std::byte>) {
    names_gateway |= type == RTA_GATEWAY || type == RTA_VIA;
  });
  return names_gateway;
}

}  // namespace taco::harp
