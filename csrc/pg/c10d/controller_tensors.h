// A named operation's tensors: those that the submission which Python holds returns, and their
// memory as the controller (pg/controller/controller.h) sees it, until the operation ends. Outputs
// may be made on the controller's thread, once their sizes are known.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "pg/controller/controller.h"

namespace taco::pg {

// Shared by the submission and the controller.
struct ControllerTensors {
  std::vector<at::Tensor> inputs;
  std::vector<at::Tensor> outputs;  // none: they are made, and there once the operation has ended
};

// A tensor's memory: from the making to the end the storage is kept, and cannot be resized. Torch
// lets no one forbid that it moves to shared memory (share_memory_()), which a program must not do
// once the operation has begun.
class FixedMemory {
 public:
  // ValueError for a tensor whose memory is gone.
  explicit FixedMemory(const at::Tensor& tensor);
  ~FixedMemory();
  FixedMemory(FixedMemory&& other) noexcept = default;
  FixedMemory& operator=(FixedMemory&&) = delete;

  Piece piece() const;

 private:
  c10::Storage storage_;
  std::size_t offset_, bytes_;
};

// The controller's.
class FixedTensors final : public controller::Tensors {
 public:
  // Contiguous CPU tensors of one dtype. Outputs that are given have the sizes that the operation
  // will ask for.
  explicit FixedTensors(std::shared_ptr<ControllerTensors> tensors);

  std::vector<Piece> inputs() override;
  Result<Piece> output(std::size_t tensor, const controller::Shape& shape) override;

 private:
  const std::shared_ptr<ControllerTensors> tensors_;
  const bool makes_outputs_;
  std::vector<FixedMemory> inputs_, outputs_;  // outputs: of those that were given
};

}  // namespace taco::pg
