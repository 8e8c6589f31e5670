// Several Stacks in one process: one for each engine that is used. And if ranks of one group are
// threads of one process, each of them is a peer of the others and needs a Stack of its own
// (docs/decisions/0004). Any thread.
#pragma once

#include <memory>
#include <vector>

#include "harp/engine/stack.h"

namespace taco::harp {

// Like Stack::acquire(), but passes over the Stacks in `occupied`: returns the oldest other Stack
// that options.engine has in this process, by that driver and transport, or a new one if there is
// none.
Result<std::shared_ptr<Stack>> acquire_beside(const std::vector<const Stack*>& occupied,
                                              const StackOptions& options);

StackStats& operator+=(StackStats& sum, const StackStats& other);

}  // namespace taco::harp
