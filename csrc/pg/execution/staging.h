// Buffers that overlap. Schedules allow one kind of overlap, an input that is exactly its place in
// the output; everything else gets memory of its own for the time of the operation. Any thread.
#pragma once

#include <cstdint>

#include "pg/execution/operation_state.h"

namespace taco::pg {

// True when the input is exactly the part of the output (or the reverse) that Problem::in_place
// means.
bool is_in_place(const OperationSpec& spec, int rank);

// Replaces inputs (copied here and now) or outputs (to be copied back) that overlap harmfully.
Status stage_overlaps(OperationState& operation, int rank);
// The same of inputs that lie harmfully under outputs, for a call whose parts end one by one: the
// memory in which they are now, or null where nothing does.
Result<std::unique_ptr<std::byte[]>> copy_overlapping_inputs(OperationSpec& spec, int rank);
// Fills the caller's outputs from the staged ones, in rank order.
void unstage(OperationState& operation);

}  // namespace taco::pg
