// all_reduce, recursive doubling: in round k each rank exchanges its whole partial sum with the
// rank whose index differs in bit k, so that after log2(world) rounds all have everything. Worlds
// that are no power of two are folded first. Both ends of an exchange compute lower (op) higher, so
// all ranks end with the same bits; for that the incoming message must land in scratch memory, and
// a partial sum is never written while it is sent.
#include "pg/algorithms/exchange.h"
#include "pg/algorithms/list.h"
#include "pg/algorithms/phases.h"

namespace taco::pg::algorithms {

namespace {

const char* unfit(const Problem&, const Topology&) { return nullptr; }

void build(ScheduleBuilder& builder, const Topology& topology) {
  const Team team = whole_world(builder.rank(), builder.world());
  const Slice own = detached(builder, builder.input(), topology.hosts() > 1);
  exchange_all_reduce(builder, team, own, builder.output());
}

}  // namespace

const Algorithm all_reduce_recursive_doubling{Kind::kAllReduce, "recursive_doubling", unfit, build};

}  // namespace taco::pg::algorithms
