// An all_reduce whose every message is coded, for tests of what schedules with coded messages need:
// the owner of each shard gets the coded operands of all others, reduces them in a fixed order and
// codes the sum, which then goes round a ring as it is. The owner decodes its own sum too, so that
// a codec that loses something leaves all ranks with the same.
#pragma once

#include "pg/planning/algorithm.h"

namespace taco::pg::testing {

extern const Algorithm coded_all_reduce;  // fits where the problem has a codec

// All algorithms there are, and that one.
Algorithms algorithms_and_coded();

}  // namespace taco::pg::testing
