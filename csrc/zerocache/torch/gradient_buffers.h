// Buffers that hold gradients until those are used, such as DDP's: the system has a buffer's memory
// again as soon as no gradient lies in it any more. Its owner writes it before it reads it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <unordered_map>
#include <vector>

namespace taco::zerocache {

// The bytes of a tensor that will be written before they are read: the system has the memory again
// until then. Pages of the system that are not the tensor's alone stay.
void forget_bytes(const at::Tensor& tensor);

// Gradients that have been used. If nobody else has one, its memory is the system's as soon as it
// leaves: the allocator would keep it, and what it gives out later often does not fit into the gap.
// autograd has a gradient for as long as it tells of it; so that one leaves a little later.
class LeavingGradients {
 public:
  void add(at::Tensor gradient);
  // Lets go of the gradients added so far.
  void let_go();

 private:
  std::vector<at::Tensor> leaving_;
};

class GradientBuffers {
 public:
  using Gradients = std::unordered_map<std::uint32_t, at::Tensor>;

  // Adds `memory`. It goes with the last of the gradients `used` that lies in it, or now if none
  // does.
  void add(const at::Tensor& memory, const Gradients& used);
  // Gives back all memory but that of these gradients.
  void give_back(const Gradients& used);

 private:
  std::vector<at::Tensor> buffers_;
};

}  // namespace taco::zerocache
