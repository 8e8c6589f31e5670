// A named operation's tensors, as the controller (pg/controller/controller.h) sees them: their
// memory, and outputs that are made on its thread once their sizes are known. Shared by the
// submission that Python holds and the controller, until the operation ends.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "pg/controller/controller.h"

namespace taco::pg {

class ControllerTensors final : public controller::Tensors {
 public:
  // Contiguous CPU tensors of one dtype. `outputs`: of the sizes that the operation will ask for;
  // none: they are made.
  ControllerTensors(std::vector<at::Tensor> inputs, std::optional<std::vector<at::Tensor>> outputs);

  std::vector<Piece> inputs() override;
  Result<Piece> output(std::size_t tensor, const controller::Shape& shape) override;

  // Once the operation has ended.
  const std::vector<at::Tensor>& outputs() const { return outputs_; }

 private:
  const std::vector<at::Tensor> inputs_;
  const bool outputs_given_;
  std::vector<at::Tensor> outputs_;
};

}  // namespace taco::pg
