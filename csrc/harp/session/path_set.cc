#include "harp/session/path_set.h"

#include <algorithm>
#include <limits>

#include "base/assert.h"
#include "harp/address.h"

namespace taco::harp {

namespace {

std::size_t place_of(wire::PathId id) { return static_cast<std::size_t>(id); }

}  // namespace

Path* PathSet::find(wire::PathId id) {
  for (const auto& path : paths_) {
    if (path->id() == id) return path.get();
  }
  return nullptr;
}

std::size_t PathSet::live() const {
  return static_cast<std::size_t>(
      std::count_if(begin(), end(), [](const auto& path) { return path->is_live(); }));
}

bool PathSet::are_apart() const {
  for (auto path = begin(); path != end(); ++path) {
    const bool shares_pair = std::any_of(begin(), path, [&](const auto& other) {
      return other->is_live() && other->pair() == (*path)->pair();
    });
    if (shares_pair && (*path)->is_live()) return false;
  }
  return true;
}

Path& PathSet::add(std::unique_ptr<Path> path) {
  TACO_ASSERT(paths_.size() < kMaxPaths && find(path->id()) == nullptr);
  paths_.push_back(std::move(path));
  return *paths_.back();
}

void PathSet::on_acks_sent(std::uint32_t which) {
  for (std::size_t i = 0; which >> i != 0; ++i) {
    if ((which >> i & 1) != 0) paths_[i]->ack().on_sent();
  }
}

void PathSet::choose_main() {
  main_ = 0;
  while (main_ < paths_.size() && !paths_[main_]->is_live()) ++main_;
  if (main_ == paths_.size()) main_ = 0;
  for (std::size_t i = 0; i < paths_.size(); ++i) paths_[i]->set_main(i == main_);
}

bool PathSet::has_other(const Path& than) const {
  return std::any_of(begin(), end(),
                     [&](const auto& path) { return path.get() != &than && path->is_live(); });
}

bool PathSet::is_heard_since(Time when, const Path& than) const {
  return std::any_of(begin(), end(), [&](const auto& path) {
    return path.get() != &than && path->is_live() && path->last_news() > when;
  });
}

Path::Others PathSet::beside(const Path& path) const {
  Path::Others others;
  for (const auto& other : paths_) {
    if (other.get() == &path || !other->is_live()) continue;
    if (!same_host_address(other->pair().remote, path.pair().remote)) continue;
    ++others.paths;
    others.window += other->window();
  }
  return others;
}

// One that may yet turn out to carry more is waited for: what does not fit it goes by the others.
std::size_t PathSet::datagram() const {
  std::size_t least = std::numeric_limits<std::size_t>::max();
  for (const auto& path : paths_) {
    if (path->is_live() && !path->mtu().is_growing()) least = std::min(least, path->mtu().size());
  }
  return least == std::numeric_limits<std::size_t>::max() ? main().mtu().size() : least;
}

Path* PathSet::soonest(std::uint32_t tried, std::uint32_t* index) {
  Path* best = nullptr;
  Duration soonest = 0;
  for (std::uint32_t i = 0; i < paths_.size(); ++i) {
    if ((tried >> i & 1) != 0 || !paths_[i]->is_live()) continue;
    const Duration arrival = paths_[i]->arrival();
    if (best != nullptr && arrival >= soonest) continue;
    best = paths_[i].get();
    soonest = arrival;
    *index = i;
  }
  return best;
}

std::uint64_t PathSet::received() const {
  std::uint64_t sum = 0;
  for (const auto& path : paths_) {
    const std::size_t place = place_of(path->id());
    const std::uint64_t closed = place < closed_up_to_.size() ? closed_up_to_[place] : 0;
    sum += std::max(path->largest_received(), closed);
  }
  for (std::size_t id = 0; id < closed_up_to_.size(); ++id) {
    if (find(static_cast<wire::PathId>(id)) == nullptr) sum += closed_up_to_[id];
  }
  return sum;
}

void PathSet::close_up_to(wire::PathId id, std::uint64_t last) {
  const std::size_t place = place_of(id);
  if (place >= kMaxPaths) return;
  if (place >= closed_up_to_.size()) closed_up_to_.resize(place + 1, 0);
  closed_up_to_[place] = std::max(closed_up_to_[place], last);
}

std::size_t PathSet::memory_bytes() const {
  std::size_t bytes =
      paths_.capacity() * sizeof(paths_.front()) + closed_up_to_.capacity() * sizeof(std::uint64_t);
  for (const auto& path : paths_) bytes += sizeof(Path) + path->memory_bytes();
  return bytes;
}

}  // namespace taco::harp
