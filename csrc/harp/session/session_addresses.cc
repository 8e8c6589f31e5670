// Addresses that come and go in the middle of a job. A path whose own address is gone begins at the
// one that leads to its other end by now, if there is one: a lease that was renewed with another
// address. Its peer follows, as it follows every path (path_ends.h). Of addresses that are new, the
// side that does not lead tells; the one that leads opens paths: to each address of the peer's to
// which there is none, from one of its own from which none leads, as many as both have ports there.
#include <algorithm>
#include <iterator>

#include "base/log.h"
#include "base/prefetch.h"
#include "harp/address.h"
#include "harp/session/session.h"

namespace taco::harp {

void Session::on_addresses_added(std::uint32_t added) {
  if (life_.ended() || life_.peer_left()) return;
  if (!established()) return leave_lost_ways();
  free_pairs_.reset();
  leave_lost_addresses();
  if (leads()) {
    open_new_paths();
  } else {
    tell_addresses(added);
  }
  update_timer();
}

void Session::tell_addresses(std::uint32_t which) {
  const std::span<const NicAddress> addresses = host_.nic().addresses();
  which &= ~host_.nic().missing_st();
  for (std::size_t i = 0; i < addresses.size(); ++i) {
    if ((which >> i & 1) == 0 || addresses[i].spare) continue;
    const Endpoint& own = addresses[i].endpoint;
    wire::PathOpen open{};
    open.local = static_cast<std::uint8_t>(i);
    open.port = wire_port_of(own);
    open.address = mapped_address(own);
    record(
        [](wire::Writer& writer, const void* what) {
          return writer.path_open(*static_cast<const wire::PathOpen*>(what));
        },
        &open);
  }
}

std::vector<Endpoint> Session::remotes() const {
  std::vector<Endpoint> all = host_.published_by(peer_incarnation_);
  for (const Endpoint& told : announced_) {
    if (std::ranges::count(all, told) == 0) all.push_back(told);
  }
  return all;
}

// The newest first, and no more than can be of use at once.
void Session::on_path_open(const wire::PathOpen& open) {
  const Endpoint there = endpoint_from(open.address, open.port);
  if (!leads() || !is_usable(there)) return;
  announced_.remove(there);
  announced_.push_front(there);
  if (std::distance(announced_.begin(), announced_.end()) >
      static_cast<std::ptrdiff_t>(kMaxPaths)) {
    announced_.erase_after(std::next(announced_.begin(), kMaxPaths - 1));
  }
  for (const auto& path : paths_) {
    if (path->standing() == Path::Standing::kProving) path->try_again();
  }
  on_addresses_added(0);
}

void Session::prefetch_parts() const {
  paths_.prefetch_places();
  if (sealing_ != nullptr) prefetch(*sealing_);
}

void Session::prefetch_paths() const {
  for (const auto& path : paths_) prefetch(*path);
  if (sealing_ != nullptr) sealing_->prefetch_sender();
}

// Hellos are said from where the host is now.
void Session::leave_lost_ways() {
  const std::uint32_t missing = host_.nic().missing_st();
  const std::span<const AddressPair> ways = handshake_.ways();
  for (std::size_t i = 0; i < ways.size(); ++i) {
    if ((missing >> ways[i].local & 1) == 0) continue;
    const std::vector<std::uint32_t> others = host_.ways_to(ways[i].remote);
    if (!others.empty()) handshake_.move_way(i, others.front());
  }
}

// The only live one has nothing to wait for: it goes at once.
void Session::leave_lost_addresses() {
  const std::uint32_t missing = host_.nic().missing_st();
  for (const auto& path : paths_) {
    if ((missing >> path->pair().local & 1) == 0) continue;
    const Endpoint remote = path->pair().remote;
    const auto free = unused_way(host_.ways_to(remote), remote);
    if (!free) continue;
    give(*path, {remote, free_port(*free)});
  }
}

void Session::give(Path& path, const AddressPair& pair) {
  TACO_LOG_DEBUG("harp", "%s: path %u from %s to %s", description_.c_str(),
                 static_cast<unsigned>(path.id()),
                 to_string(host_.nic().addresses()[pair.local].endpoint).c_str(),
                 to_string(pair.remote).c_str());
  if (path.is_live()) {
    path.move_to(pair);
    path.probe();
  } else {
    path.start_over(pair);
  }
  group_paths();
  ready();
}

// A path from that address of ours to another one than `remote`.
Path* Session::to_elsewhere(std::uint32_t local, const Endpoint& remote) const {
  const std::span<const NicAddress> addresses = host_.nic().addresses();
  const auto found = std::find_if(paths_.begin(), paths_.end(), [&](const auto& path) {
    const AddressPair& pair = path->pair();
    return same_host_address(addresses[pair.local].endpoint, addresses[local].endpoint) &&
           !same_host_address(pair.remote, remote);
  });
  return found != paths_.end() ? found->get() : nullptr;
}

// The first of these addresses of ours from which no path leads to another one than `remote`.
std::optional<std::uint32_t> Session::unused_way(std::span<const std::uint32_t> ways,
                                                 const Endpoint& remote) const {
  const auto free = std::ranges::find_if(
      ways, [&](std::uint32_t local) { return to_elsewhere(local, remote) == nullptr; });
  return free != ways.end() ? std::optional(*free) : std::nullopt;
}

// A port of the same address as `local`, which is its first; if possible one that no path has.
std::uint32_t Session::free_port(std::uint32_t local) const {
  const std::span<const NicAddress> addresses = host_.nic().addresses();
  for (std::uint32_t port = local; port < addresses.size(); ++port) {
    const bool is_used = std::any_of(paths_.begin(), paths_.end(),
                                     [&](const auto& path) { return path->pair().local == port; });
    if (!is_used && same_host_address(addresses[port].endpoint, addresses[local].endpoint)) {
      return port;
    }
  }
  return local;
}

// One that may be had for another pair of addresses: its own address is gone, and no other leads to
// its other end.
Path* Session::spare_path() const {
  const std::uint32_t missing = host_.nic().missing_st();
  const auto found = std::find_if(paths_.begin(), paths_.end(), [&](const auto& path) {
    return !path->is_live() && (missing >> path->pair().local & 1) != 0;
  });
  return found != paths_.end() ? found->get() : nullptr;
}

// The address of ours from which another path may lead to that one of `all`, as long as there are
// fewer than both sides have ports. If possible one that has no path.
std::optional<std::uint32_t> Session::lacks_path_to(const Endpoint& remote,
                                                    const std::vector<Endpoint>& all) const {
  const auto is_there = [&](const Endpoint& other) { return same_host_address(other, remote); };
  std::ptrdiff_t have = 0;
  for (const auto& path : paths_) {
    if (path->pair().remote == remote) return std::nullopt;
    have += is_there(path->pair().remote) ? 1 : 0;
  }
  if (have >= std::ranges::count_if(all, is_there)) return std::nullopt;
  const std::span<const NicAddress> addresses = host_.nic().addresses();
  std::vector<std::uint32_t> ways = host_.ways_to(remote);
  std::erase_if(ways, [&](std::uint32_t local) {
    return have >= std::ranges::count_if(addresses, [&](const NicAddress& address) {
             return !address.spare &&
                    same_host_address(address.endpoint, addresses[local].endpoint);
           });
  });
  if (ways.empty()) return std::nullopt;
  return unused_way(ways, remote).value_or(ways.front());
}

void Session::open_new_paths() {
  const std::vector<Endpoint> all = remotes();
  for (const Endpoint& remote : all) {
    const std::optional<std::uint32_t> local = lacks_path_to(remote, all);
    if (!local) continue;
    if (to_elsewhere(*local, remote) != nullptr) continue;
    const AddressPair pair{remote, free_port(*local)};
    if (paths_.count() < PathSet::kMaxPaths) {
      give(open_path(static_cast<wire::PathId>(paths_.count()), pair), pair);
    } else if (Path* const spare = spare_path()) {
      give(*spare, pair);
    }
  }
}

}  // namespace taco::harp
