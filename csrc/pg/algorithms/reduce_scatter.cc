// reduce_scatter among equals: direct, and round a ring.
//
// Direct: the owner of a block receives everybody's operand of it in a fixed order, chunk by chunk,
// the order rotating from chunk to chunk so that all links are busy. One hop.
//
// Ring: world - 1 rounds in the order of the hosts; a link has one sender and one receiver. Partial
// sums of other ranks' blocks pass through three scratch buffers in turn, so that a buffer's send
// has a round's time to be acknowledged before the buffer is written again.
#include "pg/algorithms/list.h"
#include "pg/algorithms/phases.h"
#include "pg/algorithms/shape.h"

namespace taco::pg::algorithms {

namespace {

void build_reduce_scatter_direct(ScheduleBuilder& builder, const Topology& topology) {
  const Team team = whole_world(builder.rank(), builder.world());
  const Problem& problem = builder.problem();
  // Copies are made in the order in which they will be sent.
  std::vector<Slice> own(team.size());
  own[team.me] = builder.input(team.me);
  for (int distance = 1; distance < team.size(); ++distance) {
    const int place = team.place(distance);
    own[place] = detached(builder, builder.input(place), topology.hosts() > 1);
  }
  const int chunks = pieces_of(longest_block(problem), builder.chunk());
  const auto piece = [&](const Slice& block, int chunk) {
    return Partition(block.bytes, chunks, problem.element_bytes).of(block, chunk);
  };
  for (int turn = 0; turn < chunks; ++turn) {
    const Slice sum = piece(builder.output(), turn);
    direct_reduce_scatter(
        builder, team, [&](int place) { return piece(own[place], turn); }, sum, turn);
    builder.finish_reduction(sum);
  }
}

void build_reduce_scatter_ring(ScheduleBuilder& builder, const Topology& topology) {
  const Team team{topology.host_order(), topology.position_of(builder.rank())};
  const std::uint64_t longest = longest_block(builder.problem());
  const Slice passing[3] = {builder.scratch(longest), builder.scratch(longest),
                            builder.scratch(longest)};
  const auto own = [&](int place) { return builder.input(team.ranks[place]); };
  const auto sum = [&](int place) {
    if (place == team.me) return builder.output();
    const int round = (team.me - place - 2 + 2 * team.size()) % team.size();
    return passing[round % 3].part(0, own(place).bytes);
  };
  ring_reduce_scatter(builder, team, own, sum);
  builder.finish_reduction(builder.output());
}

Workload work_reduce_scatter_direct(const Problem& problem, const Topology& topology) {
  const Shape shape(topology);
  const auto block = static_cast<double>(longest_block(problem));
  Workload work;
  shape.exchange(work, 2 * shape.near * block, 2 * shape.far * block);
  work.wire_bytes = shape.local * shape.far * block;
  work.message_bytes = block;
  return work;
}

Workload work_reduce_scatter_ring(const Problem& problem, const Topology& topology) {
  return ring_work(topology, 1, static_cast<double>(longest_block(problem)));
}

}  // namespace

const Algorithm reduce_scatter_direct{Kind::kReduceScatter, "direct", always_fit,
                                      build_reduce_scatter_direct, work_reduce_scatter_direct};
const Algorithm reduce_scatter_ring{Kind::kReduceScatter, "ring", always_fit,
                                    build_reduce_scatter_ring, work_reduce_scatter_ring};

}  // namespace taco::pg::algorithms
