// Phases that several algorithms are made of. Each runs over a team whose place j owns shard j:
// reduce-scatter leaves the finished sum of shard j with place j, all-gather gives every shard to
// everybody.
//
// Shards are given as functions from a place to a slice, so that they may be parts of one buffer,
// pieces of a list, or scratch memory. A shard may be empty.
#pragma once

#include <functional>

#include "pg/algorithms/partition.h"
#include "pg/planning/schedule_builder.h"

namespace taco::pg {

using Shards = std::function<Slice(int place)>;

// Ring: P - 1 rounds, each rank sends to the next and receives from the one before. Shard j
// starts at place j + 1 and gathers each place's operand on its way round to place j. `sum(j)` is
// where this rank keeps its partial sum of shard j; it may be `own(j)`.
void ring_reduce_scatter(ScheduleBuilder& builder, const Team& team, const Shards& own,
                         const Shards& sum);
void ring_all_gather(ScheduleBuilder& builder, const Team& team, const Shards& data);

// Direct: the owner of a shard receives every other place's operand of it and reduces them in a
// fixed order, its own first; then gives the result to all. `turn` rotates who comes first, so that
// consecutive chunks use different links at the same time; it must be the same on all places.
void direct_reduce_scatter(ScheduleBuilder& builder, const Team& team, const Shards& own,
                           const Slice& sum, int turn);
void direct_all_gather(ScheduleBuilder& builder, const Team& team, const Shards& data);

// A slice to send small messages from over a network: a scratch copy, so that the caller need not
// wait for the acknowledgement. Long messages are sent from where they are.
Slice detached(ScheduleBuilder& builder, const Slice& source, bool crosses_hosts);

}  // namespace taco::pg
