// reduce: direct and binomial.
//
// Direct: the root receives everybody's operand, in rotating order from chunk to chunk.
//
// Binomial: every rank adds up its subtree's operands, its own first, and sends the sum to its
// parent; log2(world) rounds, chunk by chunk.
#include "pg/algorithms/list.h"
#include "pg/algorithms/phases.h"
#include "pg/algorithms/shape.h"
#include "pg/algorithms/tree.h"

namespace taco::pg::algorithms {

namespace {

void build_reduce_direct(ScheduleBuilder& builder, const Topology& topology) {
  const int root = builder.problem().root;
  const Slice own = builder.input();
  const Team team = whole_world(builder.rank(), builder.world());
  const int chunks = pieces_of(own.bytes, builder.chunk());
  const Partition pieces(own.bytes, chunks, builder.problem().element_bytes);
  if (builder.rank() != root) {
    const Slice source = detached(builder, own, topology.hosts() > 1);
    for (int chunk = 0; chunk < chunks; ++chunk) builder.send(pieces.of(source, chunk), root);
    return;
  }
  const int others = team.size() - 1;
  if (others == 0) builder.copy(builder.output(), own);
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const Slice sum = pieces.of(builder.output(), chunk);
    Slice left = pieces.of(own, chunk);
    for (int step = 0; step < others; ++step) {
      builder.receive_reduce(sum, left, team.peer(1 + (step + chunk) % others));
      left = sum;
    }
    builder.finish_reduction(sum);
  }
}

void build_reduce_binomial(ScheduleBuilder& builder, const Topology& topology) {
  const Tree tree = binomial_tree(topology, builder.problem().root, builder.rank());
  const std::vector<int> children = tree.child_ranks();
  const Slice own = builder.input();
  const bool leaf = children.empty();
  if (tree.is_root() && leaf) builder.copy(builder.output(), own);
  const Slice sum = tree.is_root() ? builder.output()
                    : leaf         ? detached(builder, own, topology.hosts() > 1)
                                   : builder.scratch(own.bytes);
  const int chunks = pieces_of(own.bytes, builder.chunk());
  const Partition pieces(own.bytes, chunks, builder.problem().element_bytes);
  for (int chunk = 0; chunk < chunks; ++chunk) {
    Slice left = pieces.of(own, chunk);
    const Slice piece = pieces.of(sum, chunk);
    for (const int child : children) {
      builder.receive_reduce(piece, left, child);
      left = piece;
    }
    if (tree.is_root()) {
      builder.finish_reduction(piece);
    } else {
      builder.send(piece, tree.parent_rank());
    }
  }
}

Workload work_reduce_direct(const Problem& problem, const Topology& topology) {
  const Shape shape(topology);
  const auto bytes = static_cast<double>(problem.bytes);
  Workload work;
  (shape.across ? work.network_hops : work.shared_hops) = 1;
  work.shared_messages = shape.near;
  work.shared_bytes = (shape.near > 0 ? shape.near + 1 : 0) * bytes;
  work.network_messages = shape.far;
  work.network_bytes = shape.far * bytes;
  work.wire_bytes = shape.far * bytes;
  work.incast = shape.far > 1;
  work.message_bytes = bytes;
  return work;
}

Workload work_reduce_binomial(const Problem& problem, const Topology& topology) {
  return binomial_work(topology, static_cast<double>(problem.bytes), true);
}

}  // namespace

const Algorithm reduce_direct{Kind::kReduce, "direct", always_fit, build_reduce_direct,
                              work_reduce_direct};
const Algorithm reduce_binomial{Kind::kReduce, "binomial", always_fit, build_reduce_binomial,
                                work_reduce_binomial};

}  // namespace taco::pg::algorithms
