#include "harp/drivers/kernel_routes.h"

#include <linux/rtnetlink.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <utility>

#include "harp/drivers/kernel_interfaces.h"

namespace taco::harp {

namespace {

// A socket that is connected keeps its own address when it is connected again.
void disconnect(int fd) {
  sockaddr nobody{};
  nobody.sa_family = AF_UNSPEC;
  static_cast<void>(connect(fd, &nobody, sizeof nobody));  // of UDP, which has no way to fail
}

// A request for the route to one address, as netlink wants it.
struct RouteRequest {
  nlmsghdr header{};
  rtmsg route{};
  rtattr attribute{};
  std::array<std::byte, sizeof(in6_addr)> address{};
};
static_assert(sizeof(RouteRequest) == NLMSG_LENGTH(sizeof(rtmsg)) + RTA_LENGTH(sizeof(in6_addr)));

RouteRequest request_for(const Endpoint& destination) {
  const std::span<const std::byte> address = address_bytes(destination);
  RouteRequest request;
  const std::size_t bytes = NLMSG_LENGTH(sizeof(rtmsg)) + RTA_LENGTH(address.size());
  request.header.nlmsg_len = static_cast<std::uint32_t>(bytes);
  request.header.nlmsg_type = RTM_GETROUTE;
  request.header.nlmsg_flags = NLM_F_REQUEST;
  request.route.rtm_family = sockaddr_of(destination)->sa_family == AF_INET6 ? AF_INET6 : AF_INET;
  request.route.rtm_dst_len = static_cast<unsigned char>(8 * address.size());
  request.attribute.rta_type = RTA_DST;
  request.attribute.rta_len = static_cast<unsigned short>(RTA_LENGTH(address.size()));
  std::ranges::copy(address, request.address.begin());
  return request;
}

// The answer names a gateway. A route over several says which it takes for this destination.
bool names_gateway(std::span<std::byte> answer) {
  auto* header = reinterpret_cast<nlmsghdr*>(answer.data());
  if (!NLMSG_OK(header, answer.size()) || header->nlmsg_type != RTM_NEWROUTE) return false;
  auto* route = static_cast<rtmsg*>(NLMSG_DATA(header));
  auto left = static_cast<int>(RTM_PAYLOAD(header));
  for (rtattr* each = RTM_RTA(route); RTA_OK(each, left); each = RTA_NEXT(each, left)) {
    if (each->rta_type == RTA_GATEWAY || each->rta_type == RTA_VIA) return true;
  }
  return false;
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
    const bool leads = is_publishable(each) && !each.loopback && is_on_network(each, destination);
    if (leads && names.insert(each.name).second && !is_overlay(each.name)) {
      sources.push_back(each.address);
    }
  }
  return sources;
}

bool crosses_router(const Endpoint& destination) {
  const int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
  if (fd < 0) return false;
  // The kernel answers while it is asked. Should it not, nobody waits.
  alignas(nlmsghdr) std::array<std::byte, 4096> answer;
  const RouteRequest request = request_for(destination);
  ssize_t got = send(fd, &request, request.header.nlmsg_len, 0);
  if (got > 0) got = recv(fd, answer.data(), answer.size(), MSG_DONTWAIT);
  close(fd);
  return got > 0 && names_gateway(std::span(answer).first(static_cast<std::size_t>(got)));
}

}  // namespace taco::harp
