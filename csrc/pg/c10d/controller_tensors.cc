#include "pg/c10d/controller_tensors.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>

#include <utility>

#include "pg/c10d/backend_tensors.h"

namespace taco::pg {

ControllerTensors::ControllerTensors(std::vector<at::Tensor> inputs,
                                     std::optional<std::vector<at::Tensor>> outputs)
    : inputs_(std::move(inputs)), outputs_given_(outputs.has_value()) {
  if (outputs) outputs_ = std::move(*outputs);
  outputs_.resize(inputs_.size());
}

std::vector<Piece> ControllerTensors::inputs() {
  std::vector<Piece> pieces;
  pieces.reserve(inputs_.size());
  for (const at::Tensor& tensor : inputs_) pieces.push_back(piece_of(tensor));
  return pieces;
}

Result<Piece> ControllerTensors::output(std::size_t tensor, const controller::Shape& shape) {
  at::Tensor& output = outputs_[tensor];
  if (!outputs_given_) {
    try {
      at::AutoDispatchBelowADInplaceOrView no_autograd;
      output = at::empty(shape, inputs_[tensor].options());
    } catch (const std::exception& error) {
      return Status(Code::kResource, std::string("no memory for an output: ") + error.what());
    }
  }
  return piece_of(output);
}

}  // namespace taco::pg
