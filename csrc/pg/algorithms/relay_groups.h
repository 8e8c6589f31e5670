// Shared by the algorithms with relays: the groups of ranks that a chunk enters or leaves through
// one member (the root's group first), and the conditions under which these algorithms fit.
#pragma once

#include <vector>

#include "pg/algorithms/partition.h"
#include "pg/planning/schedule.h"
#include "pg/planning/topology.h"

namespace taco::pg {

using Groups = std::vector<std::vector<int>>;

// Every rank by itself.
inline Groups ranks_apart(const Topology& topology, int root) {
  Groups groups{{root}};
  for (const int rank : topology.host_order()) {
    if (rank != root) groups.push_back({rank});
  }
  return groups;
}

inline Groups ranks_by_host(const Topology& topology, int root) {
  Groups groups;
  for (int step = 0; step < topology.hosts(); ++step) {
    groups.push_back(topology.ranks_of((topology.host_of(root) + step) % topology.hosts()));
  }
  return groups;
}

// A message through relays is cut at least into one piece for each of them, unless the pieces would
// be shorter than this.
inline constexpr std::uint64_t kShortestRelayChunk = 8 << 10;

inline int relay_pieces(std::uint64_t bytes, std::uint64_t chunk, int relays) {
  const auto wanted = static_cast<std::uint64_t>(std::max(relays, 1));
  const std::uint64_t possible = std::max<std::uint64_t>(1, bytes / kShortestRelayChunk);
  return std::max(pieces_of(bytes, chunk), static_cast<int>(std::min(wanted, possible)));
}

inline int group_of(const Groups& groups, int rank) {
  for (std::size_t group = 0; group < groups.size(); ++group) {
    for (const int member : groups[group]) {
      if (member == rank) return static_cast<int>(group);
    }
  }
  return -1;
}

inline const char* unfit_for_relays(const Problem&, const Topology& topology) {
  return topology.world() < 3 ? "it needs two ranks besides the root" : nullptr;
}

// For everything hierarchical.
inline const char* unfit_for_hierarchy(const Problem&, const Topology& topology) {
  if (topology.hosts() == 1) return "all ranks share one host";
  if (topology.max_ranks_per_host() == 1) return "no host has two ranks";
  return nullptr;
}

}  // namespace taco::pg
