// all_reduce with a codec (pg/codec.h): of gradients, for the DDP hook, and of the tensors of a
// group whose options ask for it.
#include "base/env.h"
#include "pg/c10d/backend.h"
#include "pg/c10d/backend_tensors.h"
#include "pg/codecs/half_codec.h"

namespace taco::pg {

std::shared_ptr<const Codec> codec_named(const std::string& format) {
  if (format.empty()) return nullptr;
  return half_codec(format == "float16" ? HalfFormat::kF16 : HalfFormat::kBF16);
}

// Sums and averages of float32; anything else stays exact.
void Backend::set_codec(OperationSpec& spec) const {
  using kernels::ReduceOp;
  const bool rounds = spec.op == ReduceOp::kSum || spec.op == ReduceOp::kAvg;
  if (rounds && spec.dtype == kernels::Dtype::kF32) spec.codec = codec_;
}

c10::intrusive_ptr<c10d::Work> Backend::average(const at::Tensor& tensor,
                                                std::shared_ptr<const Codec> codec,
                                                std::shared_ptr<Feedback> feedback,
                                                std::function<void()> at_end) {
  Translation call(Kind::kAllReduce, "all_reduce of a gradient");
  call.add_in_place(tensor);
  call.spec.dtype = kernels::Dtype::kF32;
  call.spec.op = kernels::ReduceOp::kAvg;
  call.spec.codec = std::move(codec);
  call.spec.feedback = std::move(feedback);
  call.state->at_end = std::move(at_end);
  return launch(call, {c10d::OpType::ALLREDUCE, "taco:all_reduce"}, {tensor}, {tensor});
}

}  // namespace taco::pg
