// all_reduce, ring: a reduce-scatter round the ring, then an all-gather round the ring. 2 (P - 1)
// rounds, each rank sends 2 (P - 1) / P of the message and hears one sender only, so a full-duplex
// link is busy both ways all the time and no link is shared. The ring goes host by host.
#include "pg/algorithms/list.h"
#include "pg/algorithms/phases.h"
#include "pg/algorithms/shape.h"

namespace taco::pg::algorithms {

namespace {

void build_all_reduce_ring(ScheduleBuilder& builder, const Topology& topology) {
  const Team team{topology.host_order(), topology.position_of(builder.rank())};
  const Slice own = builder.input(), result = builder.output();
  const Partition shards(result.bytes, team.size(), builder.problem().element_bytes);
  const auto own_shard = [&](int place) { return shards.of(own, place); };
  const auto result_shard = [&](int place) { return shards.of(result, place); };
  ring_reduce_scatter(builder, team, own_shard, result_shard);
  builder.finish_reduction(result_shard(team.me));
  ring_all_gather(builder, team, result_shard);
}

Workload work_all_reduce_ring(const Problem& problem, const Topology& topology) {
  const double shard = static_cast<double>(problem.bytes) / topology.world();
  return ring_work(topology, 2, shard);
}

}  // namespace

const Algorithm all_reduce_ring{Kind::kAllReduce, "ring", always_fit, build_all_reduce_ring,
                                work_all_reduce_ring};

}  // namespace taco::pg::algorithms
