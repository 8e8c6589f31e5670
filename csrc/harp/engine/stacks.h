// Several Stacks in one process: a process that is several ranks of one group, as threads, is as
// many peers, and needs a Stack for each (docs/decisions/0004). Any thread.
#pragma once

#include <memory>
#include <vector>

#include "harp/engine/stack.h"

namespace taco::harp {

// As Stack::acquire(), which passes over none: the oldest of the process's Stacks that is not among
// `occupied`; one more is made when there is no such.
Result<std::shared_ptr<Stack>> acquire_beside(const std::vector<const Stack*>& occupied,
                                              const StackOptions& options);

StackStats& operator+=(StackStats& sum, const StackStats& other);

}  // namespace taco::harp
