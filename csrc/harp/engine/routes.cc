#include "harp/engine/routes.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/names.h"

namespace taco::harp {

namespace {

// Two flows come to the same one of many links as a rule; of four some do not, and a slow one is
// moved.
constexpr int kRoutedPaths = 4;

bool is_v6(const Endpoint& endpoint) { return sockaddr_of(endpoint)->sa_family == AF_INET6; }

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
