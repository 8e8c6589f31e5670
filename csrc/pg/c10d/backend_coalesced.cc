// Calls that carry several tensors: one operation each, one Work for all. The operations run
// concurrently and in the same order on every rank.
#include <torch/headeronly/version.h>

#include "pg/c10d/backend.h"
#include "pg/c10d/backend_tensors.h"

namespace taco::pg {
namespace {

#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 12
constexpr auto kReduceScatterCoalesced = c10d::OpType::COALESCED;  // has none of its own
#else
constexpr auto kReduceScatterCoalesced = c10d::OpType::REDUCE_SCATTER_TENSOR_COALESCED;
#endif

void check_pairs(std::size_t outputs, std::size_t inputs, const char* what) {
  TORCH_CHECK_VALUE(outputs == inputs, "taco: ", what, " got ", outputs, " outputs for ", inputs,
                    " inputs");
}

}  // namespace

c10::intrusive_ptr<c10d::Work> Backend::allreduce_coalesced(
    std::vector<at::Tensor>& tensors, const c10d::AllreduceCoalescedOptions& opts) {
  std::vector<c10::intrusive_ptr<c10d::Work>> works;
  const PartsOfOneCall parts;
  c10d::AllreduceOptions each = opts;
  each.asyncOp = true;
  for (at::Tensor& tensor : tensors) {
    std::vector<at::Tensor> one = {tensor};
    works.push_back(allreduce(one, each));
  }
  return combine(works, {c10d::OpType::ALLREDUCE_COALESCED, "taco:all_reduce_coalesced"}, tensors,
                 tensors);
}

c10::intrusive_ptr<c10d::Work> Backend::allgather_coalesced(
    std::vector<std::vector<at::Tensor>>& outputs, std::vector<at::Tensor>& inputs,
    const c10d::AllgatherOptions& opts) {
  // outputs[rank][i] receives that rank's inputs[i].
  TORCH_CHECK_VALUE(static_cast<int>(outputs.size()) == size_, "taco: all_gather_coalesced got ",
                    outputs.size(), " output lists for ", size_, " ranks");
  for (const auto& list : outputs) check_pairs(list.size(), inputs.size(), "all_gather_coalesced");
  c10d::AllgatherOptions each = opts;
  each.asyncOp = true;
  std::vector<c10::intrusive_ptr<c10d::Work>> works;
  const PartsOfOneCall parts;
  std::vector<at::Tensor> results;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    std::vector<std::vector<at::Tensor>> gathered(1);
    for (const auto& list : outputs) gathered[0].push_back(list[i]);
    results.insert(results.end(), gathered[0].begin(), gathered[0].end());
    std::vector<at::Tensor> one = {inputs[i]};
    works.push_back(allgather(gathered, one, each));
  }
  return combine(works, {c10d::OpType::ALLGATHER_COALESCED, "taco:all_gather_coalesced"}, inputs,
                 results);
}

c10::intrusive_ptr<c10d::Work> Backend::allgather_into_tensor_coalesced(
    std::vector<at::Tensor>& outputs, std::vector<at::Tensor>& inputs,
    const c10d::AllgatherOptions& opts) {
  check_pairs(outputs.size(), inputs.size(), "all_gather_into_tensor_coalesced");
  c10d::AllgatherOptions each = opts;
  each.asyncOp = true;
  std::vector<c10::intrusive_ptr<c10d::Work>> works;
  const PartsOfOneCall parts;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    works.push_back(_allgather_base(outputs[i], inputs[i], each));
  }
  return combine(works, {c10d::OpType::COALESCED, "taco:all_gather_into_tensor_coalesced"}, inputs,
                 outputs);
}

c10::intrusive_ptr<c10d::Work> Backend::reduce_scatter_tensor_coalesced(
    std::vector<at::Tensor>& outputs, std::vector<at::Tensor>& inputs,
    const c10d::ReduceScatterOptions& opts) {
  check_pairs(outputs.size(), inputs.size(), "reduce_scatter_tensor_coalesced");
  c10d::ReduceScatterOptions each = opts;
  each.asyncOp = true;
  std::vector<c10::intrusive_ptr<c10d::Work>> works;
  const PartsOfOneCall parts;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    works.push_back(_reduce_scatter_base(outputs[i], inputs[i], each));
  }
  return combine(works, {kReduceScatterCoalesced, "taco:reduce_scatter_tensor_coalesced"}, inputs,
                 outputs);
}

}  // namespace taco::pg
