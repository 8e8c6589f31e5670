// all_reduce, recursive doubling: in round k each rank exchanges its whole partial sum with the
// rank whose index differs in bit k, so that after log2(world) rounds all have everything. Worlds
// that are no power of two are folded first. Both ends of an exchange compute lower (op) higher, so
// all ranks end with the same bits; for that the incoming message must land in scratch memory, and
// a partial sum is never written while it is sent.
#include "pg/algorithms/exchange.h"
#include "pg/algorithms/list.h"
#include "pg/algorithms/phases.h"
#include "pg/algorithms/shape.h"

namespace taco::pg::algorithms {

namespace {

void build_all_reduce_recursive_doubling(ScheduleBuilder& builder, const Topology& topology) {
  const Team team = whole_world(builder.rank(), builder.world());
  const Slice own = detached(builder, builder.input(), topology.hosts() > 1);
  exchange_all_reduce(builder, team, own, builder.output());
}

Workload work_all_reduce_recursive_doubling(const Problem& problem, const Topology& topology) {
  const auto bytes = static_cast<double>(problem.bytes);
  const bool folded = !std::has_single_bit(static_cast<unsigned>(topology.world()));
  const double rounds = depth_for(topology.world());
  const double folds = folded ? 2 : 0;
  const Crossing crossing = crossing_of(topology);
  const double far_folds = crossing.folds > 0 ? folds : 0;
  Workload work;
  work.shared_hops = rounds - crossing.rounds + folds - far_folds;
  work.network_hops = crossing.rounds + far_folds;
  work.shared_messages = 2 * (rounds - crossing.rounds) + folds - far_folds;
  work.network_messages = 2 * crossing.rounds + far_folds;
  work.shared_bytes = work.shared_messages * bytes;
  work.network_bytes = work.network_messages * bytes;
  work.copied_bytes = 2 * bytes;
  work.reduced_bytes = (rounds + (folded ? 1 : 0)) * bytes;
  work.wire_bytes = (crossing.messages + crossing.folds) * bytes;
  work.message_bytes = bytes;
  return work;
}

}  // namespace

const Algorithm all_reduce_recursive_doubling{Kind::kAllReduce, "recursive_doubling", always_fit,
                                              build_all_reduce_recursive_doubling,
                                              work_all_reduce_recursive_doubling};

}  // namespace taco::pg::algorithms
