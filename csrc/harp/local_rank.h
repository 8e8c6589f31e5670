// A process among those of its job on this host, as launchers number them.
//
// Any thread.
#pragma once

#include "base/status.h"

namespace taco::harp {

struct LocalRank {
  int rank = 0;
  int ranks = 1;
  // LOCAL_RANK of LOCAL_WORLD_SIZE; alone where these are not set. kInvalidArgument names a value
  // that says no such thing, and what would be chosen by it: `chooses`, as in "which cores are this
  // rank's".
  static Result<LocalRank> from_env(const char* chooses);
};

}  // namespace taco::harp
