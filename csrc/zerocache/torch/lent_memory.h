// Memory that gradients lie in which somebody has lent until they are used: the system has it again
// as soon as none of them is there any more. Its lender writes it anew before it is read.
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

class LentMemory {
 public:
  using Gradients = std::unordered_map<std::uint32_t, at::Tensor>;

  // Lends `memory`. It goes with the last of the gradients `used` that lies in it, or now if none
  // does.
  void add(const at::Tensor& memory, const Gradients& used);
  // Gives back all lent memory but that of these gradients.
  void give_back(const Gradients& used);

 private:
  std::vector<at::Tensor> lent_;
};

}  // namespace taco::zerocache
