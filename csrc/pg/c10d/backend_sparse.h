// all_reduce of sparse COO tensors. Ranks differ in their number of entries, so it takes two steps:
// everybody's shape first, then an all-gather of indices and values, which are added up locally, in
// rank order: all ranks end bit-identical. Duplicate indices are allowed.
//
// The second step runs when the first is done, which each rank sees at its own time: on a
// communicator of its own, named after the first step, as what a callback starts does.
#pragma once

#include <ATen/ATen.h>

#include "pg/c10d/callback_scope.h"
#include "pg/communicator.h"

namespace taco::pg {

// `tensor` receives the result when the returned operation is done. SUM, or AVG when `average`. Any
// thread.
Result<OperationPtr> start_sparse_all_reduce(Communicator& group,
                                             std::shared_ptr<NestedGroups> nested,
                                             const at::Tensor& tensor, bool average,
                                             Duration timeout);

}  // namespace taco::pg
