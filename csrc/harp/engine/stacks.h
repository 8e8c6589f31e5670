// Several Stacks in one process. If ranks of one group are threads of one process, each of them is
// a peer of the others and needs a Stack of its own (docs/decisions/0004). Any thread.
#pragma once

#include <memory>
#include <vector>

#include "harp/engine/stack.h"

namespace taco::harp {

// Like Stack::acquire(), but passes over the Stacks in `occupied`: returns the oldest other Stack
// of this process, or a new one if there is none.
Result<std::shared_ptr<Stack>> acquire_beside(const std::vector<const Stack*>& occupied,
                                              const StackOptions& options);

StackStats& operator+=(StackStats& sum, const StackStats& other);

}  // namespace taco::harp
