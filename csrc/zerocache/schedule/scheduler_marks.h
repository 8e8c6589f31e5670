// Marks of the scheduler. Private to it.
#pragma once

#include "zerocache/schedule/residency.h"

namespace taco::zerocache {

// The position of what an operator waits for: before all others, and its pages give way to nothing.
inline constexpr Position kDemanded = -2;

}  // namespace taco::zerocache
