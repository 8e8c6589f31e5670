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

namespace taco::pg::algorithms {

namespace {

const char* always_fit(const Problem&, const Topology&) { return nullptr; }

const char* hierarchical_unfit(const Problem&, const Topology& topology) {
  return topology.max_ranks_per_host() == 1 ? "no host has two ranks" : nullptr;
}

void disseminate(ScheduleBuilder& builder, const Team& team) {
  for (int distance = 1; distance < team.size(); distance *= 2) {
    builder.signal(team.peer(distance));
    builder.await(team.peer(-distance));
  }
}

void build_direct(ScheduleBuilder& builder, const Topology&) {
  const Team team = whole_world(builder.rank(), builder.world());
  builder.signal(team.others());
  for (int distance = 1; distance < team.size(); ++distance) builder.await(team.peer(-distance));
}

void build_dissemination(ScheduleBuilder& builder, const Topology&) {
  disseminate(builder, whole_world(builder.rank(), builder.world()));
}

void build_hierarchical(ScheduleBuilder& builder, const Topology& topology) {
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

}  // namespace

const Algorithm barrier_direct{Kind::kBarrier, "direct", always_fit, build_direct};
const Algorithm barrier_dissemination{Kind::kBarrier, "dissemination", always_fit,
                                      build_dissemination};
const Algorithm barrier_hierarchical{Kind::kBarrier, "hierarchical", hierarchical_unfit,
                                     build_hierarchical};

}  // namespace taco::pg::algorithms
