// The algorithms that are forced, in the words of TACO_ALGORITHM and of Options.algorithm: "auto",
// an algorithm's name ("ring"), or names by kind ("all_reduce=ring,broadcast=binomial").
#pragma once

#include <string>

#include "base/status.h"

namespace taco::pg {

// Whether a Planner would take it, for any group: else kInvalidArgument, naming what is known.
Status check_forced(const std::string& forced);

}  // namespace taco::pg
