// TopK with error feedback on a GPU: what select_largest() of kernels/select.h does on each of many
// blocks, the same elements and the same bits.
//
//   1. ThresholdKernel looks at a sample of each block and guesses a magnitude above which a few
//      more than k elements lie.
//   2. CollectKernel passes over all once: adds up, writes the new residual, and lists the elements
//      above the guess, in the order of their index within each tile.
//   3. ChooseKernel finds the k largest of the list digit by digit, or of the whole block where the
//      guess was bad (fewer than k in the list, or more than it holds), and takes them out.
//
// Bytes that must move: 12 an element, and 8 for each that is taken; with momentum correction 20.
// A block that is not finite must keep its residual, which is known too late: so the new residual
// is another array. Where it is the same one, a look at all sums comes first, for 8 bytes an
// element more (with momentum 12).
#pragma once

#include <cmath>
#include <cstdint>
#include <string>

#include "base/status.h"
#include "kernels/cuda/exec.h"
#include "kernels/cuda/select_arrays.h"
#include "kernels/cuda/select_choose.h"
#include "kernels/cuda/select_collect.h"

namespace taco::kernels::cuda {

inline Status check_select(const SelectArguments& of) {
  if (of.count == 0) return Status();
  if (of.block == 0 || of.block > kMaxOfBlock) {
    return invalid("a block of " + std::to_string(of.block) +
                   " elements cannot be selected from: its length has to be 1 to " +
                   std::to_string(kMaxOfBlock));
  }
  const std::size_t last = of.count - (blocks_of(of) - 1) * of.block;
  const std::size_t whole = of.count < of.block ? last : of.block;
  if (of.k == 0 || of.k > whole || of.last_k == 0 || of.last_k > last) {
    return invalid("the largest " + std::to_string(of.k) + " of " + std::to_string(whole) +
                   " elements, and " + std::to_string(of.last_k) + " of the last " +
                   std::to_string(last) +
                   ", cannot be selected: it has to be 1 at least, and no more than there are");
  }
  if (of.momentum != nullptr && of.gradient == nullptr) {
    return invalid("momentum correction needs a gradient");
  }
  if ((of.momentum == nullptr) != (of.new_momentum == nullptr)) {
    return invalid("momentum and new_momentum are given both, or neither");
  }
  if (of.momentum != nullptr &&
      (of.momentum == of.new_momentum) != (of.residual == of.new_residual)) {
    return invalid("residual and momentum are either both updated in place, or neither");
  }
  return Status();
}

template <Feedback kFeedback, class Launcher>
Status select_with(const Launcher& launch, const SelectArguments& of, void* workspace) {
  const SelectArrays arrays = lay_out(of, workspace);
  TACO_RETURN_IF_ERROR(launch(ThresholdKernel<kFeedback>{arrays}, arrays.blocks));
  const std::size_t tiles = std::size_t{arrays.blocks} * arrays.tiles_of_block;
  if (arrays.in_place) {
    TACO_RETURN_IF_ERROR(launch(FiniteKernel<kFeedback>{arrays}, tiles));
  }
  TACO_RETURN_IF_ERROR(launch(CollectKernel<kFeedback>{arrays}, tiles));
  return launch(ChooseKernel{arrays}, arrays.blocks);
}

// `workspace`: select_workspace_bytes(of) bytes of the device's memory, aligned to 16, that belong
// to this call until the stream has passed it.
template <class Launcher>
Status select_on(const Launcher& launch, const SelectArguments& of, void* workspace) {
  TACO_RETURN_IF_ERROR(check_select(of));
  if (of.count == 0) return Status();
  if (of.momentum != nullptr) return select_with<Feedback::kMomentum>(launch, of, workspace);
  if (of.gradient != nullptr) return select_with<Feedback::kGradient>(launch, of, workspace);
  return select_with<Feedback::kNone>(launch, of, workspace);
}

// acc[indices[j]] += values[j] in every block, for what selection or decode_deltas() gave: indices
// are those of their block, and none comes twice.
struct ScatterAddKernel {
  static constexpr unsigned kThreads = 256;
  struct Shared {};

  float* acc;
  const float* values;
  const std::uint32_t* indices;
  std::size_t taken;  // of all blocks
  std::uint32_t block;
  std::uint32_t k;

  template <class Exec>
  TACO_DEVICE void operator()(Exec& exec, Shared&) const {
    const std::size_t j = std::size_t{exec.block()} * kThreads + exec.thread();
    if (j >= taken) return;
    float* const place = acc + j / k * block + indices[j];
    *place = Sum::apply<Scalar<float>>(*place, values[j]);
  }
};

template <class Launcher>
Status scatter_add_on(const Launcher& launch, float* acc, const float* values,
                      const std::uint32_t* indices, std::size_t taken, std::uint32_t block,
                      std::uint32_t k) {
  if (k == 0 || block == 0) return invalid("blocks of which 0 are taken hold nothing to add");
  constexpr std::size_t kThreads = ScatterAddKernel::kThreads;
  return launch(ScatterAddKernel{acc, values, indices, taken, block, k},
                (taken + kThreads - 1) / kThreads);
}

}  // namespace taco::kernels::cuda
