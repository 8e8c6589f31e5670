#include "harp/engine/routes.h"

#include <linux/rtnetlink.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "base/assert.h"
#include "base/names.h"
#include "harp/engine/interfaces.h"

namespace taco::harp {

namespace {

// Two flows come to the same one of many links as a rule; of four some do not, and a slow one is
// moved.
constexpr int kRoutedPaths = 4;

bool is_v6(const Endpoint& endpoint) { return sockaddr_of(endpoint)->sa_family == AF_INET6; }

thread_local RoutesOfOneMoment* this_moment = nullptr;

std::vector<Interface> addresses_now() {
  auto all = list_addresses();
  return all.ok() ? std::move(all).value() : std::vector<Interface>();
}

// A socket that is connected keeps its own address when it is connected again.
void disconnect(int fd) {
  sockaddr nobody{};
  nobody.sa_family = AF_UNSPEC;
  static_cast<void>(connect(fd, &nobody, sizeof nobody));  // of UDP, which has no way to fail
}

std::optional<Endpoint> kernels_choice(const Endpoint& destination) {
  Endpoint target = destination;
  if (port_of(target) == 0) set_port(target, 9);
  const int family = sockaddr_of(target)->sa_family;
  const int fd = this_moment != nullptr ? this_moment->socket_of(family)
                                        : socket(family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return std::nullopt;
  std::optional<Endpoint> source;
  sockaddr_storage own{};
  socklen_t length = sizeof own;
  if (connect(fd, sockaddr_of(target), target.size) == 0 &&
      getsockname(fd, reinterpret_cast<sockaddr*>(&own), &length) == 0) {
    source = endpoint_of(reinterpret_cast<const sockaddr*>(&own));
    set_port(*source, 0);
  }
  if (this_moment != nullptr) {
    disconnect(fd);
  } else {
    close(fd);
  }
  return source;
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
  request.route.rtm_family = is_v6(destination) ? AF_INET6 : AF_INET;
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

bool all_loopback(const std::vector<PathAddress>& paths) {
  return std::all_of(paths.begin(), paths.end(),
                     [](const PathAddress& path) { return is_loopback(path.endpoint); });
}

std::string list_of(const std::vector<PathAddress>& paths) {
  std::string text;
  for (const PathAddress& path : paths) append_name(text, to_string(path.endpoint));
  return text.empty() ? "no address" : text;
}

Status no_route(const std::vector<PathAddress>& locals, const Address& peer, bool same_host) {
  const bool only_loopback = all_loopback(locals) || all_loopback(peer.paths);
  return Status(Code::kRendezvous,
                "no way leads to pid " + std::to_string(peer.pid) + " on " + peer.host_name +
                    (same_host ? " (this host)" : " (another host)") + ", which listens at " +
                    list_of(peer.paths) + ", from here, " + list_of(locals) + ": " +
                    (only_loopback && !same_host ? "loopback does not lead to another host"
                                                 : "one has IPv4 addresses only, the other IPv6") +
                    ". Name the right interfaces with TACO_IFNAME on both hosts, or let "
                    "MASTER_ADDR be an address that every host can reach");
}

// The first of several ports at that address.
std::optional<std::uint32_t> local_at(const std::vector<PathAddress>& locals,
                                      const Endpoint& address) {
  for (std::uint32_t i = 0; i < locals.size(); ++i) {
    if (same_host_address(locals[i].endpoint, address)) return i;
  }
  return std::nullopt;
}

Result<Route> best_route(const std::vector<PathAddress>& locals, const Address& peer,
                         bool same_host, const RouteLookup& route) {
  // Inside a host loopback is the surest way, between hosts none at all.
  for (const bool loopback : {true, false}) {
    if (loopback && !same_host) continue;
    for (const PathAddress& remote : peer.paths) {
      if (is_loopback(remote.endpoint) != loopback) continue;
      for (const Endpoint& source : route(remote.endpoint)) {
        if (const auto local = local_at(locals, source)) return Route{*local, remote};
      }
    }
  }
  // The kernel would send from an address that we do not use: ours may be bound all the same.
  for (const PathAddress& remote : peer.paths) {
    if (is_loopback(remote.endpoint) && !same_host) continue;
    for (std::uint32_t i = 0; i < locals.size(); ++i) {
      if (is_v6(locals[i].endpoint) == is_v6(remote.endpoint) &&
          is_loopback(locals[i].endpoint) == is_loopback(remote.endpoint)) {
        return Route{i, remote};
      }
    }
  }
  return no_route(locals, peer, same_host);
}

// Behind the best one: none from an address of ours, or to one of the peer's, that has one already.
void add_other_ways(const std::vector<PathAddress>& locals, const Address& peer,
                    const RouteLookup& route, std::vector<Route>& ways) {
  for (const PathAddress& remote : peer.paths) {
    // An address that we have ourselves leads nowhere: bridges often have one address on every
    // host.
    if (is_loopback(remote.endpoint) || local_at(locals, remote.endpoint)) continue;
    for (const Endpoint& source : route(remote.endpoint)) {
      const auto local = local_at(locals, source);
      const bool is_used = std::ranges::any_of(ways, [&](const Route& have) {
        return same_host_address(have.remote.endpoint, remote.endpoint) ||
               same_host_address(locals[have.local_path].endpoint, source);
      });
      if (local && !is_used) ways.push_back({*local, remote});
    }
  }
}

// The n-th route between these addresses: whichever side has fewer ports uses them again, since one
// port that differs makes it another flow. None: there is no n-th.
std::optional<Route> by_port(const std::vector<PathAddress>& locals, const Address& peer,
                             const Route& way, std::size_t n) {
  std::vector<std::uint32_t> from;
  std::vector<PathAddress> to;
  for (std::uint32_t i = 0; i < locals.size(); ++i) {
    if (same_host_address(locals[i].endpoint, locals[way.local_path].endpoint)) from.push_back(i);
  }
  std::ranges::copy_if(peer.paths, std::back_inserter(to), [&](const PathAddress& path) {
    return same_host_address(path.endpoint, way.remote.endpoint);
  });
  if (n >= std::max(from.size(), to.size())) return std::nullopt;
  return Route{from[n % from.size()], to[n % to.size()]};
}

}  // namespace

std::vector<Endpoint> kernel_routes(const Endpoint& destination) {
  const auto first = kernels_choice(destination);
  if (!first) return {};
  if (this_moment != nullptr) return sources_towards(destination, *first, this_moment->addresses());
  return sources_towards(destination, *first, addresses_now());
}

RoutesOfOneMoment::RoutesOfOneMoment() {
  TACO_ASSERT(this_moment == nullptr);
  this_moment = this;
}

RoutesOfOneMoment::~RoutesOfOneMoment() {
  this_moment = nullptr;
  for (const int fd : {v4_, v6_}) {
    if (fd >= 0) close(fd);
  }
}

const std::vector<Interface>& RoutesOfOneMoment::addresses() {
  if (!addresses_) addresses_ = std::make_unique<const std::vector<Interface>>(addresses_now());
  return *addresses_;
}

int RoutesOfOneMoment::socket_of(int family) {
  int& fd = family == AF_INET6 ? v6_ : v4_;
  if (fd < 0) fd = socket(family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  return fd;
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

int ports_wanted(std::int64_t asked, std::int64_t first_port, const std::vector<Endpoint>& master,
                 const RouterLookup& router) {
  if (asked > 0) return static_cast<int>(asked);
  return first_port == 0 && std::ranges::any_of(master, router) ? kRoutedPaths : 1;
}

Result<std::vector<Route>> choose_routes(const std::vector<PathAddress>& locals,
                                         const Address& peer, bool same_host,
                                         const RouteLookup& route, const RouterLookup& router) {
  auto best = best_route(locals, peer, same_host, route);
  if (!best.ok()) return best.status();
  std::vector<Route> ways{best.value()};
  if (same_host) return ways;
  add_other_ways(locals, peer, route, ways);
  std::vector<Route> routes = ways;
  std::erase_if(ways, [&](const Route& way) {
    const bool has_more = by_port(locals, peer, way, 1).has_value();
    return !has_more || (router && !router(way.remote.endpoint));
  });
  for (std::size_t n = 1; n < kMaxPaths; ++n) {
    for (const Route& way : ways) {
      const auto next = by_port(locals, peer, way, n);
      if (next && routes.size() < kMaxPaths) routes.push_back(*next);
    }
  }
  return routes;
}

}  // namespace taco::harp
