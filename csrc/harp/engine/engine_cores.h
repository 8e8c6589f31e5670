// The cores of this process's engines, as TACO_HARP_CORES says. Its list holds those of all ranks
// of the host, because a launcher gives all of them one environment.
//
// Any thread.
#pragma once

#include <string>
#include <thread>
#include <vector>

#include "base/status.h"
#include "harp/local_rank.h"

namespace taco::harp {

// One core for each of `engines`: the rank's part of a list that has as many for each rank. Empty
// for an empty list. kInvalidArgument says how many there are and how many are needed.
Result<std::vector<int>> engine_cores(const std::string& list, int engines, LocalRank self);

// Has the thread run on that core alone. kInvalidArgument names a core that does not exist, or
// which the kernel denies this process: it is offline, or outside the process's cpuset. The mask of
// the calling thread (taskset, OMP_PROC_BIND) denies nothing: engines have cores of their own only
// where the program's threads keep away from them.
Status pin_to_core(std::thread& thread, int core);

}  // namespace taco::harp
