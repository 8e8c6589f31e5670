// all_reduce, two-dimensional: a reduce-scatter inside each host, an all-reduce of every shard
// between the hosts, an all-gather inside each host. A host sends 2 (m - 1) / m of the message for
// m hosts, however many ranks it has; a flat ring with n ranks a host sends as much as if it had
// m * n hosts.
//
// The message is worked through in chunks, the three stages of consecutive chunks overlapping.
#include "pg/algorithms/list.h"
#include "pg/algorithms/phases.h"
#include "pg/algorithms/two_dimensions.h"

namespace taco::pg::algorithms {

namespace {

void all_reduce_between(ScheduleBuilder& builder, const TwoDimensions& shape, int turn) {
  if (!shape.owns_shard()) return;
  const Team& across = shape.across();
  const Slice mine = shape.piece(turn), operand = shape.sum_inside(turn);
  const Partition parts(mine.bytes, across.size(), builder.problem().element_bytes);
  const auto part = [&](int place) { return parts.of(mine, place); };
  ring_reduce_scatter(
      builder, across, [&](int place) { return parts.of(operand, place); }, part);
  builder.finish_reduction(part(across.me));
  ring_all_gather(builder, across, part);
}

void build_all_reduce_two_dimensional(ScheduleBuilder& builder, const Topology& topology) {
  TwoDimensions shape(builder, topology);
  const auto groups = static_cast<std::uint64_t>(topology.groups().hosts());
  const int turns = pieces_of(shape.longest_shard(), builder.chunk() * groups);
  shape.set_turns(turns);
  for (int turn = 0; turn < turns + 2; ++turn) {
    if (turn < turns) shape.reduce_inside(turn);
    if (turn >= 1 && turn - 1 < turns) all_reduce_between(builder, shape, turn - 1);
    if (turn >= 2) shape.gather_inside(turn - 2);
  }
}

Workload work_all_reduce_two_dimensional(const Problem& problem, const Topology& topology) {
  const GroupLegs legs(topology);
  const double shard = static_cast<double>(problem.bytes) / legs.owners;
  const double rounds = legs.groups - 1;
  const double part = shard / legs.groups;
  // A block goes round all groups and meets each border between hosts once.
  const double borders = legs.ring_far == 0 ? 0 : std::min<double>(rounds, topology.hosts());
  Workload work;
  legs.add_inside(work, shard);
  // The ring's hops wait for one another: that keeps processors idle for about as long as one pass
  // more over the shard.
  work.shared_bytes += std::min(1.0, legs.near) * shard;
  work.network_hops += 2 * borders;
  work.shared_hops += 2 * (rounds - borders);
  work.network_messages += 2 * rounds * legs.ring_far;
  work.shared_messages += 2 * rounds * (2 - legs.ring_far);
  work.network_bytes += 2 * rounds * legs.ring_far * part;
  work.shared_bytes += 2 * rounds * (2 - legs.ring_far) * part;
  work.wire_bytes += legs.ring_leaves * 2 * rounds * part;
  work.message_bytes = part;
  work.chains = std::max(1.0, legs.ring_leaves);  // each owner's ring is one
  return work;
}

}  // namespace

const Algorithm all_reduce_two_dimensional{Kind::kAllReduce,
                                           "two_dimensional",
                                           unfit_for_groups,
                                           build_all_reduce_two_dimensional,
                                           work_all_reduce_two_dimensional,
                                           false,
                                           true};

}  // namespace taco::pg::algorithms
