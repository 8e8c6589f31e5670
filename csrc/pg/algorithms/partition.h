// Cutting a buffer into shards that never cut an element, and groups of ranks that run a phase
// together.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "pg/planning/schedule.h"

namespace taco::pg {

// `parts` nearly equal shards of `total` bytes, the longest first. Shards of useful size begin on
// cache lines.
class Partition {
 public:
  Partition(std::uint64_t total, int parts, std::uint32_t element_bytes)
      : total_(total),
        parts_(static_cast<std::uint64_t>(parts)),
        unit_(total >= parts_ * 4096 ? 64 : element_bytes),
        units_((total + unit_ - 1) / unit_) {}

  std::uint64_t offset(int part) const {
    const auto index = static_cast<std::uint64_t>(part);
    const std::uint64_t longer = std::min(index, units_ % parts_);
    return std::min(total_, (units_ / parts_ * index + longer) * unit_);
  }
  std::uint64_t longest() const { return offset(1); }
  Slice of(const Slice& whole, int first, int count = 1) const {
    return whole.part(offset(first), offset(first + count) - offset(first));
  }

 private:
  std::uint64_t total_, parts_, unit_, units_;
};

// How many pieces of at most `chunk` bytes, at least one.
inline int pieces_of(std::uint64_t bytes, std::uint64_t chunk) {
  return static_cast<int>(std::max<std::uint64_t>(1, (bytes + chunk - 1) / chunk));
}

// The ranks that run a phase together, in the order the phase goes through them.
struct Team {
  std::vector<int> ranks;
  int me = 0;  // this rank's place

  int size() const { return static_cast<int>(ranks.size()); }
  int place(int distance) const {  // `distance` may be negative, down to -size
    return (me + distance + size()) % size();
  }
  int peer(int distance) const { return ranks[place(distance)]; }
  // Every other member, the next one first.
  std::vector<int> others() const {
    std::vector<int> peers;
    for (int distance = 1; distance < size(); ++distance) peers.push_back(peer(distance));
    return peers;
  }
};

// All ranks from 0 up.
inline Team whole_world(int rank, int world) {
  Team team;
  for (int r = 0; r < world; ++r) team.ranks.push_back(r);
  team.me = rank;
  return team;
}

}  // namespace taco::pg
