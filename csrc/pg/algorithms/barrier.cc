// barrier: direct, dissemination and hierarchical, all of empty messages.
//
// Direct: everybody signals everybody. One round.
//
// Dissemination: in round k a rank signals the rank 2^k places on and awaits the one 2^k before;
// a signal says that its sender has heard, directly or not, of 2^k ranks. log2(world) rounds.
//
// Hierarchical: the ranks of a host report to its first, the first ranks disseminate among
// themselves and release their hosts.
#include "pg/algorithms/list.h"
#include "pg/algorithms/phases.h"
#include "pg/algorithms/relay_groups.h"
#include "pg/algorithms/shape.h"

namespace taco::pg::algorithms {

namespace {

const char* barrier_hierarchical_unfit(const Problem&, const Topology& topology) {
  return topology.max_ranks_per_host() == 1 ? "no host has two ranks" : nullptr;
}

void disseminate(ScheduleBuilder& builder, const Team& team) {
  for (int distance = 1; distance < team.size(); distance *= 2) {
    builder.signal(team.peer(distance));
    builder.await(team.peer(-distance));
  }
}

void build_barrier_direct(ScheduleBuilder& builder, const Topology&) {
  const Team team = whole_world(builder.rank(), builder.world());
  builder.signal(team.others());
  for (int distance = 1; distance < team.size(); ++distance) builder.await(team.peer(-distance));
}

void build_barrier_dissemination(ScheduleBuilder& builder, const Topology&) {
  disseminate(builder, whole_world(builder.rank(), builder.world()));
}

void build_barrier_hierarchical(ScheduleBuilder& builder, const Topology& topology) {
  const std::vector<int>& local = topology.ranks_of(topology.host_of(builder.rank()));
  if (builder.rank() != local[0]) {
    builder.signal(local[0]);
    return builder.await(local[0]);
  }
  const std::vector<int> followers(local.begin() + 1, local.end());
  for (const int rank : followers) builder.await(rank);
  Team leaders;
  for (int host = 0; host < topology.hosts(); ++host) {
    leaders.ranks.push_back(topology.ranks_of(host)[0]);
  }
  leaders.me = topology.host_of(builder.rank());
  disseminate(builder, leaders);
  builder.signal(followers);
}

Workload work_barrier_direct(const Problem&, const Topology& topology) {
  const Shape shape(topology);
  Workload work;
  shape.exchange(work, 0, 0);
  return work;
}

Workload work_barrier_dissemination(const Problem&, const Topology& topology) {
  const Shape shape(topology);
  const double rounds = rounds_for(shape.world);
  Workload work;
  (shape.across ? work.network_hops : work.shared_hops) = rounds;
  (shape.across ? work.network_messages : work.shared_messages) = 2 * rounds;
  return work;
}

Workload work_barrier_hierarchical(const Problem&, const Topology& topology) {
  const Shape shape(topology);
  const double rounds = rounds_for(shape.hosts);
  Workload work;
  work.shared_hops = 2;
  work.shared_messages = 2 * shape.near;
  work.network_hops = rounds;
  work.network_messages = 2 * rounds;
  return work;
}

}  // namespace

const Algorithm barrier_direct{Kind::kBarrier, "direct", always_fit, build_barrier_direct,
                               work_barrier_direct};
const Algorithm barrier_dissemination{Kind::kBarrier, "dissemination", always_fit,
                                      build_barrier_dissemination, work_barrier_dissemination};
const Algorithm barrier_hierarchical{Kind::kBarrier, "hierarchical", barrier_hierarchical_unfit,
                                     build_barrier_hierarchical, work_barrier_hierarchical};

}  // namespace taco::pg::algorithms
