// Paths between the same two addresses, and how a slow one of them is moved to other ports. The
// side that leads moves it; the other one asks for it. The path is live all the while: it goes
// where it is challenged once the peer has answered there, and what is under way arrives by the
// old ports.
#include <algorithm>
#include <array>
#include <vector>

#include "base/log.h"
#include "harp/address.h"
#include "harp/session/session.h"

namespace taco::harp {

bool Session::is_between(const Path& path, const Path& other) const {
  return between_same_hosts(path.pair(), other.pair(), host_.nic().addresses());
}

// Groups the paths that have several ports at each end: no others have anywhere to go. After a path
// has come, or has moved to another address.
void Session::group_paths() {
  free_pairs_.reset();
  groups_.clear();
  for (const auto& path : paths_) {
    const auto known = std::ranges::find_if(groups_, [&](const PathGroup& group) {
      return is_between(*paths_.find(group.paths.front()), *path);
    });
    if (known == groups_.end()) {
      groups_.emplace_front().paths.push_back(path->id());
    } else {
      known->paths.push_back(path->id());
    }
  }
  std::erase_if(groups_, [](const PathGroup& group) { return group.paths.size() < 2; });
}

Session::PathGroup* Session::group_of(const Path& path) {
  const auto found = std::ranges::find_if(groups_, [&](const PathGroup& group) {
    return std::ranges::count(group.paths, path.id()) != 0;
  });
  return found == groups_.end() ? nullptr : &*found;
}

// Once per burst that has brought acknowledgements.
void Session::look_for_slow_paths() {
  for (PathGroup& group : groups_) {
    std::array<Repathing::Reading, PathSet::kMaxPaths> readings;
    std::size_t live = 0;
    for (const wire::PathId id : group.paths) {
      const Path& path = *paths_.find(id);
      if (path.is_live()) readings[live++] = {id, path.packets_acked(), path.is_limited()};
    }
    if (live < 2) continue;
    const std::span<const Repathing::Reading> now = std::span(readings).first(live);
    const auto wish = group.moves.look(now, host_.random(), host_.now());
    if (wish) move_path(*wish);
  }
}

// Only the side that leads moves paths; the other one asks for it.
bool Session::move_path(const wire::PathMove& move) {
  Path* const path = paths_.find(move.path);
  const PathGroup* const group = path != nullptr ? group_of(*path) : nullptr;
  if (group == nullptr || !path->is_live()) return false;
  if (!leads()) {
    record(
        [](wire::Writer& writer, const void* what) {
          return writer.path_move(*static_cast<const wire::PathMove*>(what));
        },
        &move);
    return true;
  }
  std::vector<AddressPair> free = free_ports(*path);
  if (move.back && group->moved != move.path) return false;
  if (move.back) std::erase_if(free, [&](const auto& pair) { return !(pair == group->before); });
  if (free.empty()) return false;
  path->challenge(free[host_.random() % free.size()]);
  ready();
  return true;
}

// Between the same addresses, and no other path has them.
std::vector<AddressPair> Session::free_ports(const Path& path) const {
  const std::span<const NicAddress> addresses = host_.nic().addresses();
  const std::vector<Endpoint> all = remotes();
  std::vector<AddressPair> free;
  for (std::uint32_t local = 0; local < addresses.size(); ++local) {
    for (const Endpoint& remote : all) {
      const AddressPair pair{remote, local};
      if (!between_same_hosts(pair, path.pair(), addresses)) continue;
      const bool used = std::any_of(paths_.begin(), paths_.end(),
                                    [&](const auto& other) { return other->pair() == pair; });
      if (!used) free.push_back(pair);
    }
  }
  return free;
}

void Session::on_path_move(const wire::PathMove& wish) {
  const Path* const path = paths_.find(wish.path);
  PathGroup* const group = path != nullptr ? group_of(*path) : nullptr;
  if (!leads() || group == nullptr || !group->moves.may_oblige(host_.now())) return;
  move_path(wish);
}

void Session::on_path_moved(const Path& path, const AddressPair& before, bool was_live) {
  const std::span<const NicAddress> addresses = host_.nic().addresses();
  if (!between_same_hosts(before, path.pair(), addresses)) return group_paths();
  if (!was_live) return;
  ++host_.counters().paths_moved;
  TACO_LOG_DEBUG("harp", "%s: path %u has moved to other ports: %s to %s", description_.c_str(),
                 static_cast<unsigned>(path.id()),
                 to_string(addresses[path.pair().local].endpoint).c_str(),
                 to_string(path.pair().remote).c_str());
  PathGroup* const group = group_of(path);
  if (group == nullptr) return;
  group->moved = path.id();
  group->before = before;
  group->moves.on_moved(host_.now());
}

}  // namespace taco::harp
