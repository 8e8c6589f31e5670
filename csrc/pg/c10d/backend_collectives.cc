// Collectives on dense tensors: what each c10d call means as an OperationSpec.
#include <torch/headeronly/version.h>

#include <numeric>

#include "edge/errors.h"
#include "pg/c10d/backend.h"
#include "pg/c10d/backend_tensors.h"

namespace taco::pg {
namespace {

using c10d::OpType;

#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 13
using PreMulSumSupplement = c10d::NCCLPreMulSumSupplement;  // its name before others used it
#else
using c10d::PreMulSumSupplement;
#endif

// Rows of dim 0 each rank gets: the given splits, or equal shares.
std::vector<int64_t> splits_or_equal(const at::Tensor& tensor, const std::vector<int64_t>& splits,
                                     int world, const char* what) {
  const int64_t rows = tensor.dim() == 0 ? 0 : tensor.size(0);
  TORCH_CHECK_VALUE(tensor.dim() > 0, "taco: ", what, " needs tensors of at least one dimension");
  if (splits.empty()) {
    TORCH_CHECK_VALUE(rows % world == 0, "taco: ", what, ": dim 0 (", rows,
                      ") does not divide by the world size ", world, "; pass split sizes");
    return std::vector<int64_t>(world, rows / world);
  }
  TORCH_CHECK_VALUE(static_cast<int>(splits.size()) == world, "taco: ", what, " got ",
                    splits.size(), " split sizes for ", world, " ranks");
  for (int64_t split : splits) {
    TORCH_CHECK_VALUE(split >= 0, "taco: ", what, " got a negative split size: ", split);
  }
  const int64_t sum = std::accumulate(splits.begin(), splits.end(), int64_t{0});
  TORCH_CHECK_VALUE(sum == rows, "taco: ", what, ": split sizes add up to ", sum,
                    ", dim 0 of the tensor is ", rows);
  return splits;
}

void check_list(const std::vector<std::vector<at::Tensor>>& lists, int world, const char* what) {
  TORCH_CHECK_VALUE(lists.size() == 1, "taco: ", what, " takes one list of tensors, got ",
                    lists.size());
  TORCH_CHECK_VALUE(static_cast<int>(lists[0].size()) == world, "taco: ", what, " got ",
                    lists[0].size(), " tensors for ", world, " ranks");
}

}  // namespace

void Backend::check_root(int64_t root, const char* what) const {
  TORCH_CHECK_VALUE(root >= 0 && root < size_, "taco: ", what, " names rank ", root,
                    ", the group has ranks 0 to ", size_ - 1);
}

void Backend::set_reduction(Translation& translation, const c10d::ReduceOp& op,
                            c10::ScalarType type) {
  using c10d::ReduceOp;
  OperationSpec& spec = translation.spec;
  spec.dtype = reduction_dtype(type);
  TORCH_CHECK_TYPE(op.op_ <= ReduceOp::PREMUL_SUM, "taco: unknown reduction ",
                   static_cast<int>(op.op_));
  // ReduceOp and kernels::ReduceOp list the operations in the same order.
  static_assert(int{ReduceOp::SUM} == int(kernels::ReduceOp::kSum));
  static_assert(int{ReduceOp::BXOR} == int(kernels::ReduceOp::kBxor));
  static_assert(int{ReduceOp::PREMUL_SUM} == int(kernels::ReduceOp::kPremulSum));
  spec.op = static_cast<kernels::ReduceOp>(op.op_);
  if (op.op_ == ReduceOp::PREMUL_SUM) {
    const auto* supplement = dynamic_cast<const PreMulSumSupplement*>(op.supplement_.get());
    TORCH_CHECK_VALUE(supplement, "taco: PREMUL_SUM without its factor");
    spec.premul = supplement->tensor_factor.defined() ? supplement->tensor_factor.item<double>()
                                                      : supplement->double_factor;
  }
  raise_if_error(kernels::check_supported(spec.op, spec.dtype));
}

c10::intrusive_ptr<c10d::Work> Backend::broadcast(std::vector<at::Tensor>& tensors,
                                                  const c10d::BroadcastOptions& opts) {
  const at::Tensor& tensor = only(tensors, "broadcast");
  check_root(opts.rootRank, "broadcast");
  Translation call(Kind::kBroadcast, "broadcast");
  call.add_in_place(tensor);
  call.spec.dtype = movement_dtype(tensor.scalar_type());
  call.spec.root = static_cast<int>(opts.rootRank);
  return launch(call, {OpType::BROADCAST, "taco:broadcast", opts.timeout, opts.asyncOp}, tensors,
                tensors);
}

c10::intrusive_ptr<c10d::Work> Backend::allreduce(std::vector<at::Tensor>& tensors,
                                                  const c10d::AllreduceOptions& opts) {
  const at::Tensor& tensor = only(tensors, "all_reduce");
  if (tensor.layout() == c10::kSparse) return allreduce_sparse(tensors, opts);
  if (auto work = run_armed(tensor, opts)) return work;
  Translation call(Kind::kAllReduce, "all_reduce");
  call.add_in_place(tensor);
  set_reduction(call, opts.reduceOp, tensor.scalar_type());
  set_codec(call.spec);
  return launch(call, {OpType::ALLREDUCE, "taco:all_reduce", opts.timeout, opts.asyncOp}, tensors,
                tensors);
}

c10::intrusive_ptr<c10d::Work> Backend::reduce(std::vector<at::Tensor>& tensors,
                                               const c10d::ReduceOptions& opts) {
  const at::Tensor& tensor = only(tensors, "reduce");
  check_root(opts.rootRank, "reduce");
  Translation call(Kind::kReduce, "reduce");
  if (opts.rootRank == rank_) {
    call.add_in_place(tensor);
  } else {
    call.add_input(tensor);
    call.add_scratch_output(tensor);
  }
  set_reduction(call, opts.reduceOp, tensor.scalar_type());
  call.spec.root = static_cast<int>(opts.rootRank);
  return launch(call, {OpType::REDUCE, "taco:reduce", opts.timeout, opts.asyncOp}, tensors,
                tensors);
}

c10::intrusive_ptr<c10d::Work> Backend::allgather(std::vector<std::vector<at::Tensor>>& outputs,
                                                  std::vector<at::Tensor>& inputs,
                                                  const c10d::AllgatherOptions& opts) {
  const at::Tensor& input = only(inputs, "all_gather");
  check_list(outputs, size_, "all_gather");
  require_same_dtype(outputs[0], input.scalar_type(), "all_gather");
  Translation call(Kind::kAllGather, "all_gather");
  call.add_input(input);
  call.add_outputs(outputs[0]);
  call.spec.dtype = movement_dtype(input.scalar_type());
  return launch(call, {OpType::ALLGATHER, "taco:all_gather", opts.timeout, opts.asyncOp}, inputs,
                outputs[0]);
}

c10::intrusive_ptr<c10d::Work> Backend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                        const c10d::AllgatherOptions& opts) {
  constexpr const char* kName = "all_gather_into_tensor";
  require_same_dtype({output}, input.scalar_type(), kName);
  TORCH_CHECK_VALUE(output.numel() == input.numel() * size_, "taco: ", kName, ": the output has ",
                    output.numel(), " elements, ", size_, " inputs of ", input.numel(), " have ",
                    input.numel() * size_);
  Translation call(Kind::kAllGather, kName);
  call.add_input(input);
  call.add_output_blocks(output, size_);
  call.spec.dtype = movement_dtype(input.scalar_type());
  return launch(call,
                {OpType::_ALLGATHER_BASE, "taco:_all_gather_base", opts.timeout, opts.asyncOp},
                {input}, {output});
}

c10::intrusive_ptr<c10d::Work> Backend::gather(std::vector<std::vector<at::Tensor>>& outputs,
                                               std::vector<at::Tensor>& inputs,
                                               const c10d::GatherOptions& opts) {
  const at::Tensor& input = only(inputs, "gather");
  check_root(opts.rootRank, "gather");
  Translation call(Kind::kGather, "gather");
  call.add_input(input);
  std::vector<at::Tensor> results;
  if (opts.rootRank == rank_) {
    check_list(outputs, size_, "gather");
    require_same_dtype(outputs[0], input.scalar_type(), "gather");
    call.add_outputs(outputs[0]);
    results = outputs[0];
  } else {
    TORCH_CHECK_VALUE(outputs.empty(), "taco: gather takes outputs on the root rank only");
  }
  call.spec.dtype = movement_dtype(input.scalar_type());
  call.spec.root = static_cast<int>(opts.rootRank);
  return launch(call, {OpType::GATHER, "taco:gather", opts.timeout, opts.asyncOp}, inputs,
                std::move(results));
}

c10::intrusive_ptr<c10d::Work> Backend::scatter(std::vector<at::Tensor>& outputs,
                                                std::vector<std::vector<at::Tensor>>& inputs,
                                                const c10d::ScatterOptions& opts) {
  const at::Tensor& output = only(outputs, "scatter");
  check_root(opts.rootRank, "scatter");
  Translation call(Kind::kScatter, "scatter");
  if (opts.rootRank == rank_) {
    check_list(inputs, size_, "scatter");
    require_same_dtype(inputs[0], output.scalar_type(), "scatter");
    for (const at::Tensor& input : inputs[0]) call.add_input(input);
  } else {
    TORCH_CHECK_VALUE(inputs.empty(), "taco: scatter takes inputs on the root rank only");
  }
  call.add_output(output);
  call.spec.dtype = movement_dtype(output.scalar_type());
  call.spec.root = static_cast<int>(opts.rootRank);
  return launch(call, {OpType::SCATTER, "taco:scatter", opts.timeout, opts.asyncOp}, outputs,
                outputs);
}

c10::intrusive_ptr<c10d::Work> Backend::reduce_scatter(std::vector<at::Tensor>& outputs,
                                                       std::vector<std::vector<at::Tensor>>& inputs,
                                                       const c10d::ReduceScatterOptions& opts) {
  const at::Tensor& output = only(outputs, "reduce_scatter");
  check_list(inputs, size_, "reduce_scatter");
  require_same_dtype(inputs[0], output.scalar_type(), "reduce_scatter");
  TORCH_CHECK_VALUE(inputs[0][rank_].numel() == output.numel(),
                    "taco: reduce_scatter: the output has ", output.numel(), " elements, input ",
                    rank_, " has ", inputs[0][rank_].numel());
  Translation call(Kind::kReduceScatter, "reduce_scatter");
  for (const at::Tensor& input : inputs[0]) call.add_input(input);
  call.add_output(output);
  set_reduction(call, opts.reduceOp, output.scalar_type());
  return launch(call, {OpType::REDUCE_SCATTER, "taco:reduce_scatter", opts.timeout, opts.asyncOp},
                inputs[0], outputs);
}

c10::intrusive_ptr<c10d::Work> Backend::_reduce_scatter_base(
    at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& opts) {
  return reduce_scatter_coded(output, input, opts, nullptr);
}

c10::intrusive_ptr<c10d::Work> Backend::reduce_scatter_coded(at::Tensor& output, at::Tensor& input,
                                                             const c10d::ReduceScatterOptions& opts,
                                                             std::shared_ptr<const Codec> codec) {
  constexpr const char* kName = "reduce_scatter_tensor";
  require_same_dtype({input}, output.scalar_type(), kName);
  TORCH_CHECK_VALUE(input.numel() == output.numel() * size_, "taco: ", kName, ": the input has ",
                    input.numel(), " elements, ", size_, " outputs of ", output.numel(), " have ",
                    output.numel() * size_);
  Translation call(Kind::kReduceScatter, kName);
  call.add_input_blocks(input, size_);
  call.add_output(output);
  set_reduction(call, opts.reduceOp, output.scalar_type());
  call.spec.codec = std::move(codec);
  return launch(
      call, {OpType::_REDUCE_SCATTER_BASE, "taco:_reduce_scatter_base", opts.timeout, opts.asyncOp},
      {input}, {output});
}

c10::intrusive_ptr<c10d::Work> Backend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                      std::vector<int64_t>& output_splits,
                                                      std::vector<int64_t>& input_splits,
                                                      const c10d::AllToAllOptions& opts) {
  constexpr const char* kName = "all_to_all_single";
  require_same_dtype({output}, input.scalar_type(), kName);
  Translation call(Kind::kAllToAll, kName);
  call.add_input_rows(input, splits_or_equal(input, input_splits, size_, kName));
  call.add_output_rows(output, splits_or_equal(output, output_splits, size_, kName));
  call.spec.equal_splits = input_splits.empty() && output_splits.empty();
  TORCH_CHECK_VALUE(!call.spec.equal_splits || input.numel() == output.numel(), "taco: ", kName,
                    " without split sizes needs tensors of one size, got ", input.numel(), " and ",
                    output.numel(), " elements");
  call.spec.dtype = movement_dtype(input.scalar_type());
  return launch(call, {OpType::ALLTOALL_BASE, "taco:all_to_all", opts.timeout, opts.asyncOp},
                {input}, {output});
}

c10::intrusive_ptr<c10d::Work> Backend::alltoall(std::vector<at::Tensor>& outputs,
                                                 std::vector<at::Tensor>& inputs,
                                                 const c10d::AllToAllOptions& opts) {
  check_list({inputs}, size_, "all_to_all");
  check_list({outputs}, size_, "all_to_all");
  require_same_dtype(inputs, inputs[0].scalar_type(), "all_to_all");
  require_same_dtype(outputs, inputs[0].scalar_type(), "all_to_all");
  Translation call(Kind::kAllToAll, "all_to_all");
  for (const at::Tensor& input : inputs) call.add_input(input);
  call.add_outputs(outputs);
  call.spec.dtype = movement_dtype(inputs[0].scalar_type());
  return launch(call, {OpType::ALLTOALL, "taco:all_to_all", opts.timeout, opts.asyncOp}, inputs,
                outputs);
}

c10::intrusive_ptr<c10d::Work> Backend::barrier(const c10d::BarrierOptions& opts) {
  Translation call(Kind::kBarrier, "barrier");
  return launch(call, {OpType::BARRIER, "taco:barrier", opts.timeout, opts.asyncOp}, {}, {});
}

}  // namespace taco::pg
