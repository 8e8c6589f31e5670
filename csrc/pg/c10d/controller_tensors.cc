#include "pg/c10d/controller_tensors.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>

#include <utility>

#include "edge/exposed_memory.h"
#include "pg/c10d/backend_tensors.h"

namespace taco::pg {

FixedMemory::FixedMemory(const at::Tensor& tensor)
    : storage_(tensor.storage()),
      offset_(static_cast<std::size_t>(tensor.storage_offset()) * tensor.element_size()),
      bytes_(tensor.nbytes()) {
  edge::check_has_memory(tensor, "a named operation");
  edge::fix_storage(storage_);
}

FixedMemory::~FixedMemory() {
  if (storage_) edge::release_storage(storage_);
}

// Where it lies now: memory that moves to other processes (share_memory_()) may do so until then.
Piece FixedMemory::piece() const {
  if (bytes_ == 0) return {};
  auto* const begin = static_cast<std::byte*>(const_cast<void*>(storage_.data()));
  return {begin + offset_, bytes_};
}

FixedTensors::FixedTensors(std::shared_ptr<ControllerTensors> tensors)
    : tensors_(std::move(tensors)), makes_outputs_(tensors_->outputs.empty()) {
  for (const at::Tensor& tensor : tensors_->inputs) inputs_.emplace_back(tensor);
  for (const at::Tensor& tensor : tensors_->outputs) outputs_.emplace_back(tensor);
  if (makes_outputs_) tensors_->outputs.resize(inputs_.size());
}

std::vector<Piece> FixedTensors::inputs() {
  std::vector<Piece> pieces;
  pieces.reserve(inputs_.size());
  for (const FixedMemory& memory : inputs_) pieces.push_back(memory.piece());
  return pieces;
}

// Throws where there is no memory for an output, which the controller takes as a failure.
Result<Piece> FixedTensors::output(std::size_t tensor, const controller::Shape& shape) {
  if (!makes_outputs_) return outputs_[tensor].piece();
  at::AutoDispatchBelowADInplaceOrView no_autograd;
  at::Tensor& output = tensors_->outputs[tensor];
  output = at::empty(shape, tensors_->inputs[tensor].options());
  return piece_of(output);
}

}  // namespace taco::pg
