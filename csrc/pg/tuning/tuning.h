// TACO_TUNE=1: what links and processors really cost, measured when the default group starts, in
// some hundred milliseconds. The first two ranks of a host measure shared memory, the first ranks
// of two hosts the network, rank 0 its own copying and reducing, one after the other; the rest
// wait. Rank 0 rounds the results and broadcasts the block: all ranks plan from the same one.
#pragma once

#include <memory>

#include "base/status.h"
#include "pg/communicator.h"

namespace taco::pg {

// Blocks; every rank of the group calls it, before its first operation. `options` are the group's;
// another group is made for the measurement. Any thread but an engine's, without the GIL.
Result<CostParameters> tune(const std::shared_ptr<harp::Stack>& stack, const GroupOptions& options);

}  // namespace taco::pg
