// The text of a timeout: who has arrived at the operation, and what each of the others is doing.
// Pure.
#pragma once

#include <cstdint>
#include <string>

#include "pg/execution/executor.h"
#include "pg/group/deadlines.h"

namespace taco::pg {

// `newest`: the newest collective's sequence number here, near which the others' are.
std::string describe_arrivals(const TimeoutReport& report, const GroupView& group,
                              std::uint64_t newest);

}  // namespace taco::pg
