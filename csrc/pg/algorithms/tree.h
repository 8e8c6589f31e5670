// Trees over the ranks, for rooted collectives. Ranks are put in an order that begins with the root
// and goes host by host, so that every subtree is a run of consecutive positions and leaves a host
// as rarely as possible.
#pragma once

#include <vector>

#include "pg/planning/topology.h"

namespace taco::pg {

struct Tree {
  std::vector<int> order;   // rank at each position; order[0] is the root
  std::vector<int> parent;  // by position; -1 for the root
  std::vector<int> end;     // by position: its subtree is [position, end)
  int me = 0;               // this rank's position

  int size() const { return static_cast<int>(order.size()); }
  bool is_root() const { return me == 0; }
  int parent_rank() const { return order[parent[me]]; }
  std::vector<int> children() const;  // positions of this rank's, ascending
  std::vector<int> child_ranks() const;
  int subtree_size() const { return end[me] - me; }
};

// Binomial among the hosts, and binomial inside each: the parent of the p-th is the one whose index
// is p with its lowest set bit cleared.
Tree binomial_tree(const Topology& topology, int root, int rank);
// Binomial among the hosts; the ranks of a host all hang on its first.
Tree host_tree(const Topology& topology, int root, int rank);

}  // namespace taco::pg
