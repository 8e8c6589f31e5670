#include "pg/algorithms/tree.h"

#include <algorithm>

namespace taco::pg {

namespace {

// The root, the rest of its host, then the other hosts.
std::vector<int> order_from(const Topology& topology, int root) {
  std::vector<int> order{root};
  for (int step = 0; step < topology.hosts(); ++step) {
    const int host = (topology.host_of(root) + step) % topology.hosts();
    for (const int rank : topology.ranks_of(host)) {
      if (rank != root) order.push_back(rank);
    }
  }
  return order;
}

int find_position(const std::vector<int>& order, int rank) {
  return static_cast<int>(std::find(order.begin(), order.end(), rank) - order.begin());
}

// Children come after their parents, so one pass from the back finds where subtrees end.
void find_subtree_ends(Tree& tree) {
  tree.end.resize(tree.order.size());
  for (int position = 0; position < tree.size(); ++position) tree.end[position] = position + 1;
  for (int position = tree.size() - 1; position > 0; --position) {
    int& end = tree.end[tree.parent[position]];
    end = std::max(end, tree.end[position]);
  }
}

// The first rank of each host in the order stands for it; these form a binomial tree. Inside a host
// the index-th rank hangs on the one with index `parent_in_host(index)`.
template <class ParentInHost>
Tree make_tree(const Topology& topology, int root, int rank, ParentInHost parent_in_host) {
  Tree tree;
  tree.order = order_from(topology, root);
  std::vector<int> firsts;  // positions
  for (int position = 0; position < tree.size(); ++position) {
    const bool first =
        position == 0 || !topology.same_host(tree.order[position], tree.order[position - 1]);
    if (first) {
      const auto host = firsts.size();
      tree.parent.push_back(host == 0 ? -1 : firsts[host & (host - 1)]);
      firsts.push_back(position);
    } else {
      tree.parent.push_back(firsts.back() + parent_in_host(position - firsts.back()));
    }
  }
  tree.me = find_position(tree.order, rank);
  find_subtree_ends(tree);
  return tree;
}

}  // namespace

std::vector<int> Tree::children() const {
  std::vector<int> found;
  for (int position = me + 1; position < end[me]; ++position) {
    if (parent[position] == me) found.push_back(position);
  }
  return found;
}

std::vector<int> Tree::child_ranks() const {
  std::vector<int> ranks = children();
  for (int& position : ranks) position = order[position];
  return ranks;
}

Tree binomial_tree(const Topology& topology, int root, int rank) {
  return make_tree(topology, root, rank, [](int index) { return index & (index - 1); });
}

Tree host_tree(const Topology& topology, int root, int rank) {
  return make_tree(topology, root, rank, [](int) { return 0; });
}

}  // namespace taco::pg
