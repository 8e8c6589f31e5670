#include "zerocache/ranks/collectives.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "kernels/kernels.h"

namespace taco::zerocache {
namespace {

// A sum of what an all_gather() brings.
class Sum : public Collectives::Work {
 public:
  Sum(std::span<float> own, std::size_t ranks, std::size_t rank)
      : own_(own), ranks_(ranks), rank_(rank), gathered_(own.size() * ranks * ranks) {}

  Status begin(Collectives& ranks, std::span<const float> all) {
    auto work = ranks.all_gather(std::as_bytes(all), std::as_writable_bytes(std::span(gathered_)));
    if (!work.ok()) return work.status();
    work_ = std::move(work).value();
    return {};
  }

  Status wait() override {
    if (work_ == nullptr) return {};
    const Status arrived = std::exchange(work_, nullptr)->wait();
    TACO_RETURN_IF_ERROR(arrived);
    const auto add = kernels::reduce_function(kernels::ReduceOp::kSum, kernels::Dtype::kF32);
    std::copy_n(part_of(0), own_.size(), own_.begin());
    for (std::size_t from = 1; from < ranks_; ++from) {
      kernels::reduce(add, own_.data(), own_.data(), part_of(from), own_.size(), sizeof(float));
    }
    return {};
  }

 private:
  const float* part_of(std::size_t from) const {
    return gathered_.data() + (from * ranks_ + rank_) * own_.size();
  }

  const std::span<float> own_;
  const std::size_t ranks_, rank_;
  std::vector<float> gathered_;
  std::unique_ptr<Work> work_;  // goes before what it fills
};

}  // namespace

Result<std::unique_ptr<Collectives::Work>> Collectives::reduce_scatter(std::span<const float> all,
                                                                       std::span<float> own) {
  auto sum = std::make_unique<Sum>(own, static_cast<std::size_t>(size()),
                                   static_cast<std::size_t>(rank()));
  TACO_RETURN_IF_ERROR(sum->begin(*this, all));
  return std::unique_ptr<Work>(std::move(sum));
}

}  // namespace taco::zerocache
