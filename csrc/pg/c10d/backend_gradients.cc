// Sums with a codec (pg/codec.h): of gradients, for the hooks of DDP and FSDP2, and of the tensors
// of a group whose options ask for it.
#include <utility>

#include "base/env.h"
#include "pg/c10d/backend.h"
#include "pg/c10d/backend_tensors.h"
#include "pg/codecs/half_codec.h"

namespace taco::pg {
namespace {

// At most one group at a time: the thread that arms it starts its all_reduce next. The group stands
// by itself, since every all_reduce looks at it: a word, without a constructor to have been run.
constinit thread_local const Backend* armed_group = nullptr;
thread_local Backend::Instead armed_with;

}  // namespace

std::shared_ptr<const Codec> codec_named(const std::string& format) {
  if (format.empty()) return nullptr;
  return half_codec(format == "float16" ? HalfFormat::kF16 : HalfFormat::kBF16);
}

// Sums and averages of float32; anything else stays exact.
void Backend::set_codec(OperationSpec& spec) const {
  using kernels::ReduceOp;
  const bool rounds = spec.op == ReduceOp::kSum || spec.op == ReduceOp::kAvg;
  if (codec_ && rounds && spec.dtype == kernels::Dtype::kF32) spec.codec = codec_;
}

c10::intrusive_ptr<c10d::Work> Backend::reduce_gradient(const at::Tensor& tensor,
                                                        const c10d::AllreduceOptions& opts,
                                                        Coded coded) {
  Translation call(Kind::kAllReduce, "all_reduce of a gradient");
  call.add_in_place(tensor);
  set_reduction(call, opts.reduceOp, tensor.scalar_type());
  call.spec.codec = std::move(coded.codec);
  call.spec.feedback = std::move(coded.feedback);
  call.spec.scaled = coded.scaled;
  call.spec.fates = coded.fates;
  return launch(call, {c10d::OpType::ALLREDUCE, "taco:all_reduce", opts.timeout, opts.asyncOp},
                {tensor}, {tensor});
}

void Backend::arm(Instead instead) {
  armed_group = this;
  armed_with = std::move(instead);
}

void Backend::disarm() {
  if (armed_group != this) return;
  armed_group = nullptr;
  armed_with = nullptr;
}

c10::intrusive_ptr<c10d::Work> Backend::run_armed(const at::Tensor& tensor,
                                                  const c10d::AllreduceOptions& opts) {
  if (armed_group != this) return nullptr;
  armed_group = nullptr;
  return std::exchange(armed_with, nullptr)(tensor, opts);
}

std::vector<int> Backend::groups() {
  const std::shared_ptr<Communicator> now = communicator();
  const Topology& topology = now->topology().groups();
  std::vector<int> all(topology.world());
  for (int rank = 0; rank < topology.world(); ++rank) all[rank] = topology.host_of(rank);
  return all;
}

}  // namespace taco::pg
