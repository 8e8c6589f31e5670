// Steps of an optimizer over pages: chunk after chunk of parameters and state is used, each element
// once, while those that come next are fetched and those that were written leave.
//
// The same bits whatever the page size, the number of threads and the places of the pages are: each
// element goes through the same operations (kernels/optimizers.h). Only what has an update is
// touched, and its state begins, from zeros, with its own first step. Bfloat16 parameters are
// rounded from a master copy in float32; where the parameter is not what the master copy rounds to,
// somebody has given it another value, and the master copy becomes that.
//
// One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <variant>
#include <vector>

#include "base/status.h"
#include "kernels/optimizers.h"
#include "zerocache/layout.h"
#include "zerocache/page_uses.h"
#include "zerocache/state_layout.h"

namespace taco::zerocache {

using StepConstants = std::variant<kernels::AdamStep, kernels::SgdStep, kernels::LionStep>;

struct Update {
  std::uint32_t tensor = 0;        // index in the layout
  const void* gradient = nullptr;  // as many elements as the tensor has, contiguous
  bool bf16_gradient = false;      // otherwise float32
  StepConstants step;
};

struct OptimizerStreamOptions {
  unsigned threads = 1;
  // Where parameters are stepped: kDevice where the device's memory is the host's.
  Tier parameter_tier = Tier::kDevice;
};

// Uses of the stream have keys from here on, those of others stay below.
inline constexpr OperatorKey kOptimizerKeys = OperatorKey{1} << 60;

class OptimizerStream {
 public:
  // The others outlive it. `layout` may grow, but not by parameters with state.
  OptimizerStream(PageUses& pages, const Layout& layout, const StateLayout& state,
                  const OptimizerStreamOptions& options);
  ~OptimizerStream();
  OptimizerStream(const OptimizerStream&) = delete;
  OptimizerStream& operator=(const OptimizerStream&) = delete;

  // One step of all these tensors, by rising page. kInvalidArgument, and nothing is done, for a
  // tensor without the state that its step needs or that is named twice. Where a page cannot be
  // had, its chunk and those behind it are not stepped: the message says how far the step came.
  Status step(std::span<const Update> updates);
  // The part of such a step that lies on one page of parameters, once the gradients of all that is
  // to be stepped there are final. step() is this for each page.
  Status step_page(PageId parameters, std::span<const Update> updates);

  // State by the tensor "<parameter>/<kind>", in bytes from its start; what was never written reads
  // as zeros.
  Status read_state(const PlacedTensor& tensor, std::uint64_t from, std::span<std::byte> to);
  Status write_state(const PlacedTensor& tensor, std::uint64_t from,
                     std::span<const std::byte> bytes);
  // Whether a page of state has been written.
  bool holds(PageId state) const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace taco::zerocache
