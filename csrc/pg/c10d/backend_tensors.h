// From tensors to the Pieces of an OperationSpec. A contiguous CPU tensor is used where it lies;
// anything else (strides, conjugate views) goes through a contiguous copy that is written back when
// the operation is done. Used while one call is being translated, by the calling thread.
#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <vector>

#include "pg/c10d/work.h"
#include "pg/operation.h"

namespace taco::pg {

// A contiguous tensor's memory.
Piece piece_of(const at::Tensor& tensor);

// Throws NotImplementedError for a tensor that is not a dense CPU tensor (`what` names the call).
void require_cpu(const at::Tensor& tensor, const char* what);
void require_same_dtype(const std::vector<at::Tensor>& tensors, c10::ScalarType type,
                        const char* what);
const at::Tensor& only(const std::vector<at::Tensor>& tensors, const char* what);

// Throws TypeError naming what is supported.
kernels::Dtype reduction_dtype(c10::ScalarType type);
// For calls that only move bytes every type works: types the kernels do not know travel as one of
// the same size.
kernels::Dtype movement_dtype(c10::ScalarType type);

class Translation {
 public:
  Translation(Kind kind, const char* what);

  // The tensor's elements in order, as one piece the engine reads.
  void add_input(const at::Tensor& tensor);
  // One piece the engine writes.
  void add_output(const at::Tensor& tensor);
  // One piece the engine reads and writes: the operation works in place.
  void add_in_place(const at::Tensor& tensor);
  // An output piece of the tensor's size whose content nobody asks for.
  void add_scratch_output(const at::Tensor& tensor);
  // `count` equal consecutive pieces.
  void add_input_blocks(const at::Tensor& tensor, int count);
  void add_output_blocks(const at::Tensor& tensor, int count);
  // Consecutive pieces of `rows[i]` rows (elements of dim 0) each.
  void add_input_rows(const at::Tensor& tensor, const std::vector<int64_t>& rows);
  void add_output_rows(const at::Tensor& tensor, const std::vector<int64_t>& rows);
  // The list may name the same memory more than once (`[t] * world`): pg/execution/staging.h sorts
  // that out, so that the last one wins on every run.
  void add_outputs(const std::vector<at::Tensor>& tensors);

  OperationSpec spec;
  WorkStatePtr state = std::make_shared<WorkState>();

 private:
  at::Tensor readable(const at::Tensor& tensor);
  at::Tensor writable(const at::Tensor& tensor, bool keep_content);

  const char* what_;
};

}  // namespace taco::pg
