// The recursive-doubling exchange, for the whole world or for one rank of each host.
#pragma once

#include "pg/algorithms/partition.h"
#include "pg/planning/schedule_builder.h"

namespace taco::pg {

// Every place of the team ends with the finished reduction of all places' `own` in `result`.
void exchange_all_reduce(ScheduleBuilder& builder, const Team& team, const Slice& own,
                         const Slice& result);

}  // namespace taco::pg
