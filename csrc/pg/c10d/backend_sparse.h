// all_reduce of sparse COO tensors. Ranks differ in their number of entries, so it takes two steps:
// everybody's shape first, then an all-gather of indices and values, which are added up locally, in
// rank order: all ranks end bit-identical. Duplicate indices are allowed.
//
// The second steps run on a communicator of their own, in the order of the calls, so that the
// group's other operations keep their sequence numbers while a sparse one is under way.
#pragma once

#include <ATen/ATen.h>

#include <deque>
#include <memory>
#include <mutex>

#include "pg/c10d/rendezvous.h"
#include "pg/communicator.h"

namespace taco::pg {

class SparseAllReduce;

// One per group, owned by its Backend. Any thread.
class SparseQueue {
 public:
  explicit SparseQueue(const Meeting& meeting);
  ~SparseQueue();

  // `tensor` receives the result when the returned operation is done. SUM, or AVG when `average`.
  Result<OperationPtr> start(Communicator& group, const at::Tensor& tensor, bool average,
                             Duration timeout);
  void close();

 private:
  friend class SparseAllReduce;
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

}  // namespace taco::pg
