#include "pg/c10d/bucket_arrangement.h"

#include <unordered_map>
#include <utility>

namespace taco::pg {
namespace {

// torch's own rebuild_buckets() goes by the order in which gradients came; what it does with the
// outcome is open to those who derive from the Reducer only.
struct OpenReducer : c10d::Reducer {
  static constexpr auto kParams = &OpenReducer::params_;
  static constexpr auto kIsFinal = &OpenReducer::has_rebuilt_bucket_;
  static constexpr auto kCame = &OpenReducer::rebuilt_params_;
  static constexpr auto kCameIndices = &OpenReducer::rebuilt_param_indices_;
};

bool is_each_once(const BucketArrangement& arrangement, std::size_t parameters) {
  std::vector<bool> seen(parameters, false);
  std::size_t count = 0;
  for (const std::vector<std::int64_t>& bucket : arrangement) {
    for (const std::int64_t index : bucket) {
      if (index < 0 || static_cast<std::size_t>(index) >= parameters || seen[index]) return false;
      seen[index] = true;
      ++count;
    }
  }
  return count == parameters;
}

}  // namespace

BucketArrangement arrangement_of(const c10d::Reducer& reducer) {
  std::unordered_map<const c10::TensorImpl*, std::int64_t> numbers;
  for (const at::Tensor& parameter : reducer.*OpenReducer::kParams) {
    numbers.emplace(parameter.unsafeGetTensorImpl(), static_cast<std::int64_t>(numbers.size()));
  }
  BucketArrangement arrangement;
  for (const c10d::GradBucket& bucket : reducer.get_grad_buckets(/*return_zero_tensors=*/false)) {
    std::vector<std::int64_t>& found = arrangement.emplace_back();
    for (const at::Tensor& parameter : bucket.getParameters()) {
      found.push_back(numbers.at(parameter.unsafeGetTensorImpl()));
    }
  }
  return arrangement;
}

bool arrange(c10d::Reducer& reducer, const BucketArrangement& arrangement) {
  if (!reducer.should_rebuild_buckets()) return false;
  if (!is_each_once(arrangement, (reducer.*OpenReducer::kParams).size())) return false;
  std::vector<std::vector<std::size_t>> buckets;
  for (const std::vector<std::int64_t>& bucket : arrangement) {
    buckets.emplace_back(bucket.begin(), bucket.end());
  }
  reducer.*OpenReducer::kIsFinal = true;
  (reducer.*OpenReducer::kCame).clear();
  (reducer.*OpenReducer::kCameIndices).clear();
  reducer.initialize_buckets(std::move(buckets));
  return true;
}

}  // namespace taco::pg
