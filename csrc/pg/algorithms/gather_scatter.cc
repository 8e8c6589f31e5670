// gather and scatter: direct, and along a tree.
//
// Direct: each block travels straight between its rank and the root; the only way that moves no
// byte twice.
//
// Trees, for short blocks and many ranks: a rank gathers its subtree's blocks into one run of
// scratch memory, in the tree's order, and sends the run to its parent as one message; scatter is
// the same backwards. "binomial" spreads the messages evenly; "hierarchical" lets one message a
// host cross the network on each edge between hosts.
#include "pg/algorithms/list.h"
#include "pg/algorithms/phases.h"
#include "pg/algorithms/relay_groups.h"
#include "pg/algorithms/shape.h"
#include "pg/algorithms/tree.h"

namespace taco::pg::algorithms {

namespace {

constexpr std::uint64_t kLongestCopied = 16 << 20;

const char* tree_unfit(const Problem& problem, const Topology& topology) {
  return problem.total(topology.world()) > kLongestCopied ? "it copies every block once a round"
                                                          : nullptr;
}

const char* host_tree_unfit(const Problem& problem, const Topology& topology) {
  const char* reason = unfit_for_hierarchy(problem, topology);
  return reason ? reason : tree_unfit(problem, topology);
}

void build_direct_gather(ScheduleBuilder& builder, const Topology& topology) {
  const int root = builder.problem().root;
  const Slice own = builder.input();
  if (builder.rank() != root) {
    return builder.send(detached(builder, own, topology.hosts() > 1), root);
  }
  const Team team = whole_world(builder.rank(), builder.world());
  builder.copy(builder.output(root), own);
  for (const int rank : team.others()) builder.receive(builder.output(rank), rank);
}

void build_direct_scatter(ScheduleBuilder& builder, const Topology& topology) {
  const int root = builder.problem().root;
  if (builder.rank() != root) return builder.receive(builder.output(), root);
  const Team team = whole_world(builder.rank(), builder.world());
  for (const int rank : team.others()) {
    builder.send(detached(builder, builder.input(rank), topology.hosts() > 1), rank);
  }
  builder.copy(builder.output(), builder.input(root));
}

// This rank's subtree's blocks, one after the other.
class Run {
 public:
  Run(ScheduleBuilder& builder, const Tree& tree)
      : block_(builder.problem().bytes), first_(tree.me) {
    slice_ = builder.scratch(block_ * tree.subtree_size());
  }
  Slice of(int position, int end) const {
    return slice_.part(block_ * (position - first_), block_ * (end - position));
  }

 private:
  std::uint64_t block_;
  int first_;
  Slice slice_;
};

void gather_along(ScheduleBuilder& builder, const Tree& tree) {
  const Run run(builder, tree);
  for (const int child : tree.children()) {
    builder.receive(run.of(child, tree.end[child]), tree.order[child]);
  }
  if (tree.is_root()) {
    builder.copy(builder.output(builder.rank()), builder.input());
    for (int position = 1; position < tree.size(); ++position) {
      builder.copy(builder.output(tree.order[position]), run.of(position, position + 1));
    }
  } else {
    builder.copy(run.of(tree.me, tree.me + 1), builder.input());
    builder.send(run.of(tree.me, tree.end[tree.me]), tree.parent_rank());
  }
}

void scatter_along(ScheduleBuilder& builder, const Tree& tree) {
  const Run run(builder, tree);
  if (tree.is_root()) {
    for (int position = 1; position < tree.size(); ++position) {
      builder.copy(run.of(position, position + 1), builder.input(tree.order[position]));
    }
    builder.copy(builder.output(), builder.input(builder.rank()));
  } else {
    builder.receive(run.of(tree.me, tree.end[tree.me]), tree.parent_rank());
    builder.copy(builder.output(), run.of(tree.me, tree.me + 1));
  }
  // The largest subtree has the longest way to go.
  const std::vector<int> children = tree.children();
  for (auto child = children.rbegin(); child != children.rend(); ++child) {
    builder.send(run.of(*child, tree.end[*child]), tree.order[*child]);
  }
}

void build_binomial_gather(ScheduleBuilder& builder, const Topology& topology) {
  gather_along(builder, binomial_tree(topology, builder.problem().root, builder.rank()));
}
void build_binomial_scatter(ScheduleBuilder& builder, const Topology& topology) {
  scatter_along(builder, binomial_tree(topology, builder.problem().root, builder.rank()));
}
void build_host_gather(ScheduleBuilder& builder, const Topology& topology) {
  gather_along(builder, host_tree(topology, builder.problem().root, builder.rank()));
}
void build_host_scatter(ScheduleBuilder& builder, const Topology& topology) {
  scatter_along(builder, host_tree(topology, builder.problem().root, builder.rank()));
}

Workload tree_work(const Topology& topology, double block, double rounds) {
  const Shape shape(topology);
  Workload work;
  (shape.across ? work.network_hops : work.shared_hops) = rounds;
  (shape.across ? work.network_relays : work.shared_relays) = std::max(0.0, rounds - 1);
  (shape.across ? work.network_messages : work.shared_messages) = rounds;
  (shape.across ? work.network_bytes : work.shared_bytes) = (shape.world - 1) * block;
  work.copied_bytes = shape.world * block;
  work.wire_bytes = shape.far * block;
  work.incast = shape.hosts > 2;
  work.message_bytes = shape.world / 2 * block;
  return work;
}

Workload work_gather_scatter_direct(const Problem& problem, const Topology& topology) {
  const Shape shape(topology);
  const auto block = static_cast<double>(problem.bytes);
  Workload work;
  (shape.across ? work.network_hops : work.shared_hops) = 1;
  work.shared_messages = shape.near;
  work.shared_bytes = (shape.near > 0 ? shape.near + 1 : 0) * block;
  work.network_messages = shape.far;
  work.network_bytes = shape.far * block;
  work.copied_bytes = block;
  work.wire_bytes = shape.far * block;
  work.in_turn = shape.far > 1;
  work.message_bytes = block;
  return work;
}

Workload work_gather_scatter_binomial(const Problem& problem, const Topology& topology) {
  return tree_work(topology, static_cast<double>(problem.bytes), depth_for(topology.world()));
}

Workload work_host_tree(const Problem& problem, const Topology& topology) {
  Workload work =
      tree_work(topology, static_cast<double>(problem.bytes), depth_for(topology.hosts()));
  const double near = topology.max_ranks_per_host() - 1;
  work.shared_hops += 1;
  work.shared_relays += 1;
  work.shared_messages = near;
  return work;
}

}  // namespace

const Algorithm gather_direct{Kind::kGather, "direct", always_fit, build_direct_gather,
                              work_gather_scatter_direct};
const Algorithm gather_binomial{Kind::kGather, "binomial", tree_unfit, build_binomial_gather,
                                work_gather_scatter_binomial};
const Algorithm gather_hierarchical{Kind::kGather, "hierarchical", host_tree_unfit,
                                    build_host_gather, work_host_tree};
const Algorithm scatter_direct{Kind::kScatter, "direct", always_fit, build_direct_scatter,
                               work_gather_scatter_direct};
const Algorithm scatter_binomial{Kind::kScatter, "binomial", tree_unfit, build_binomial_scatter,
                                 work_gather_scatter_binomial};
const Algorithm scatter_hierarchical{Kind::kScatter, "hierarchical", host_tree_unfit,
                                     build_host_scatter, work_host_tree};

}  // namespace taco::pg::algorithms
