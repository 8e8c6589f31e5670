// The leg of FSDP2 between replicas (HSDP): torch starts its all_reduce, and LightCC takes the
// place of it where it has been armed.
#include "base/log.h"
#include "edge/errors.h"
#include "pg/c10d/ddp_hook.h"

namespace taco::pg {

void GradientHook::arm(std::size_t index, const lightcc::Layout& layout, bool whole) {
  backend_->arm(
      [this, index, layout, whole](const at::Tensor& tensor, const c10d::AllreduceOptions& opts) {
        return reduce_armed(index, layout, whole, tensor, opts);
      });
}

// Null: as it would have been without us.
GradientHook::WorkPtr GradientHook::reduce_armed(std::size_t index, const lightcc::Layout& layout,
                                                 bool whole, const at::Tensor& buffer,
                                                 const c10d::AllreduceOptions& opts) {
  if (!is_plain_float32(buffer)) {
    say_once(said_dtype_, c10::str("gradients of ", buffer.scalar_type(),
                                   " are sent as they are: only float32 is compressed"));
    return {};
  }
  const auto op = opts.reduceOp.op_;
  if (op != c10d::ReduceOp::SUM && op != c10d::ReduceOp::AVG) return {};
  if (gradients_.elements_of(layout) != static_cast<std::uint64_t>(buffer.numel())) {
    say_once(said_unknown_,
             "a shard holds other elements than those of its parameters; it is sent as it is");
    return {};
  }
  return reduce({.index = index,
                 .layout = layout,
                 .gradient = elements_of(buffer),
                 .at_once = true,  // torch has fixed which parameters there are
                 .adds = true,
                 .whole = whole},
                buffer, opts);
}

}  // namespace taco::pg
