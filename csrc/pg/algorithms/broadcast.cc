// broadcast: direct and binomial.
//
// Direct: the root sends to everybody. Best inside a host, where the message is staged once for all
// readers.
//
// Binomial: every rank that has the message passes it on to its subtree; log2(world) rounds. Long
// messages flow down the tree chunk by chunk.
#include "pg/algorithms/list.h"
#include "pg/algorithms/phases.h"
#include "pg/algorithms/shape.h"
#include "pg/algorithms/tree.h"

namespace taco::pg::algorithms {

namespace {

void build_broadcast_direct(ScheduleBuilder& builder, const Topology& topology) {
  const Slice message = builder.output();
  const int root = builder.problem().root;
  if (builder.rank() != root) return builder.receive(message, root);
  const Team team = whole_world(builder.rank(), builder.world());
  builder.send(detached(builder, message, topology.hosts() > 1), team.others());
}

void build_broadcast_binomial(ScheduleBuilder& builder, const Topology& topology) {
  const Tree tree = binomial_tree(topology, builder.problem().root, builder.rank());
  const Slice message = builder.output();
  // Other hosts first: they have the longest way.
  std::vector<int> children = tree.child_ranks();
  std::reverse(children.begin(), children.end());
  const int chunks = pieces_of(message.bytes, builder.chunk());
  const Partition pieces(message.bytes, chunks, builder.problem().element_bytes);
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const Slice piece = pieces.of(message, chunk);
    if (!tree.is_root()) builder.receive(piece, tree.parent_rank());
    if (!children.empty()) {
      builder.send(detached(builder, piece, chunks == 1 && topology.hosts() > 1), children);
    }
  }
}

Workload work_broadcast_direct(const Problem& problem, const Topology& topology) {
  const Shape shape(topology);
  const auto bytes = static_cast<double>(problem.bytes);
  Workload work;
  (shape.across ? work.network_hops : work.shared_hops) = 1;
  work.shared_messages = shape.near;
  work.shared_bytes = shape.near > 0 ? 2 * bytes : 0;  // the root's and a reader's copy
  work.network_messages = shape.far;
  work.network_bytes = shape.far * bytes;
  work.wire_bytes = shape.far * bytes;
  work.message_bytes = bytes;
  return work;
}

Workload work_broadcast_binomial(const Problem& problem, const Topology& topology) {
  return binomial_work(topology, static_cast<double>(problem.bytes), false);
}

}  // namespace

const Algorithm broadcast_direct{Kind::kBroadcast, "direct", always_fit, build_broadcast_direct,
                                 work_broadcast_direct};
const Algorithm broadcast_binomial{Kind::kBroadcast, "binomial", always_fit,
                                   build_broadcast_binomial, work_broadcast_binomial};

}  // namespace taco::pg::algorithms
