#include "zerocache/ranks/zero1/gradient_shards.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <string>
#include <utility>

#include "base/timeline.h"
#include "kernels/kernels.h"
#include "zerocache/ranks/agreement.h"

namespace taco::zerocache {

GradientShards::GradientShards(Collectives& ranks, Lockstep& lockstep, const Layout& layout,
                               const Stripes& stripes, std::span<const std::uint32_t> trained,
                               std::size_t max_under_way)
    : ranks_(ranks),
      lockstep_(lockstep),
      layout_(layout),
      stripes_(stripes),
      max_under_way_(std::max<std::size_t>(max_under_way, 1)) {
  for (const std::uint32_t index : trained) {
    const PlacedTensor& tensor = layout.tensors()[index];
    const Run run = layout.pages_of(tensor);
    for (PageId id = run.first; id < run.first + run.count; ++id) {
      Page& page = pages_[id];
      page.tensors.push_back(index);
      page.element_bytes = tensor.element_bytes;
      Stripe& stripe = by_stripe_[stripes.stripe_of(id)];
      ++stripe.gradients;
      stripe.elements = std::max(stripe.elements, layout.page_bytes() / tensor.element_bytes);
    }
  }
}

GradientShards::~GradientShards() { drop(); }

Status GradientShards::add(const FinalGradient& gradient) {
  if (!lockstep_.ended().ok()) {
    drop();
    return lockstep_.ended();
  }
  const auto invalid = [&](const std::string& what) {
    return Status(Code::kInvalidArgument,
                  "parameter '" + layout_.tensors()[gradient.tensor].name + "' " + what);
  };
  const Run run = layout_.pages_of(layout_.tensors()[gradient.tensor]);
  if (gradient.values == nullptr && run.count > 0) return invalid("has an empty gradient");
  if (given_.contains(gradient.tensor)) return invalid("has two gradients in one backward pass");
  for (PageId page = run.first; page < run.first + run.count; ++page) {
    const auto found = pages_.find(page);
    const bool trained = found != pages_.end() &&
                         std::find(found->second.tensors.begin(), found->second.tensors.end(),
                                   gradient.tensor) != found->second.tensors.end();
    if (!trained) return invalid("has a gradient, but is not trained");
  }
  lockstep_.note(gradient.tensor);
  given_[gradient.tensor] = {gradient, run.count};
  if (run.count == 0) done_.push_back(gradient.tensor);
  for (PageId page = run.first; page < run.first + run.count; ++page) {
    const StripeId id = stripes_.stripe_of(page);
    Stripe& stripe = by_stripe_.at(id);
    if (++stripe.come < stripe.gradients) continue;
    if (Status reduced = reduce(id); !reduced.ok()) {
      drop();
      return reduced;
    }
  }
  return {};
}

Status GradientShards::reduce(StripeId id) {
  while (under_way_.size() >= max_under_way_) TACO_RETURN_IF_ERROR(finish_first());
  by_stripe_.at(id).come = 0;
  const std::size_t elements = by_stripe_.at(id).elements;
  auto reduction = std::make_unique<Reduction>();
  reduction->stripe = id;
  reduction->own.resize(elements);
  reduction->all.resize(elements * static_cast<std::size_t>(stripes_.ranks()));
  Digest digest, purposes;
  digest.add_value(id);
  for (int rank = 0; rank < stripes_.ranks(); ++rank) {
    const PageId page = stripes_.page_of(id, rank);
    if (page == kNoPage) continue;
    const std::size_t place = elements * static_cast<std::size_t>(rank);
    auto packed = pack(page, std::span(reduction->all).subspan(place, elements), digest);
    for (const std::uint32_t tensor : packed) {
      purposes.add_value(given_.at(tensor).gradient.purpose);
    }
    if (rank == stripes_.rank()) reduction->tensors = std::move(packed);
  }
  Intent intent;
  intent.what = "average gradients of " + layout_.describe(stripes_.first_page(id));
  if (averaged_here_ != nullptr) {
    char text[64];  // for who looks for a difference
    const auto number = static_cast<unsigned long long>(purposes.value());
    std::snprintf(text, sizeof text, " for steps with the constants %016llx", number);
    intent.what += text;
  }
  digest.add_value(purposes.value());
  intent.digest = digest.value();
  Reduction* const begun = reduction.get();
  intent.start = [this, begun]() -> Status {
    auto work = ranks_.reduce_scatter(begun->all, begun->own);
    if (!work.ok()) return work.status();
    begun->work = std::move(work).value();
    begun->started = monotonic_now();
    used_ = used_ || averaged_here_ != nullptr;
    return {};
  };
  intent.drop = [begun](const Status& why) { begun->failed = why; };
  under_way_.push_back(std::move(reduction));
  lockstep_.announce(std::move(intent));
  return {};
}

// Copies the gradients that lie on the page, the rest being zeros, and returns whose they are.
std::vector<std::uint32_t> GradientShards::pack(PageId id, std::span<float> to, Digest& digest) {
  std::vector<std::uint32_t> tensors;
  const auto page = pages_.find(id);
  if (page == pages_.end()) return tensors;
  const std::uint64_t start = std::uint64_t{id} * layout_.page_bytes();
  for (const std::uint32_t index : page->second.tensors) {
    const auto given = given_.find(index);
    if (given == given_.end()) continue;
    tensors.push_back(index);
    digest.add_value(index);
    const PlacedTensor& tensor = layout_.tensors()[index];
    const std::uint64_t begin = std::max(tensor.offset, start);
    const std::uint64_t end = std::min(tensor.offset + tensor.bytes, start + layout_.page_bytes());
    const std::size_t from = (begin - tensor.offset) / tensor.element_bytes;
    const std::size_t count = (end - begin) / tensor.element_bytes;
    float* const place = to.data() + (begin - start) / tensor.element_bytes;
    const FinalGradient& gradient = given->second.gradient;
    if (gradient.bf16) {
      kernels::bf16_to_f32(place, static_cast<const std::uint16_t*>(gradient.values) + from, count);
    } else {
      std::memcpy(place, static_cast<const float*>(gradient.values) + from, count * sizeof(float));
    }
    if (--given->second.pages_left == 0) done_.push_back(index);
  }
  return tensors;
}

// Finishes the first of the stripes under way: its mean is there afterwards.
Status GradientShards::finish_first() {
  if (under_way_.front()->work == nullptr) static_cast<void>(lockstep_.wait());
  const std::unique_ptr<Reduction> first = std::move(under_way_.front());
  under_way_.pop_front();
  if (first->work == nullptr) return first->failed.ok() ? lockstep_.ended() : first->failed;
  Status arrived = first->work->wait();
  if (!arrived.ok()) {
    lockstep_.fail(arrived);
    return arrived;
  }
  if (timeline::enabled()) {
    timeline::add({.name = layout_.describe(stripes_.first_page(first->stripe)),
                   .track = "ranks, average",
                   .started = first->started,
                   .ended = monotonic_now()});
  }
  TACO_RETURN_IF_ERROR(add_mean(first->stripe, std::move(first->own)));
  if (averaged_here_ == nullptr || clearing_) return {};
  return averaged_here_(first->stripe, first->tensors);
}

Status GradientShards::add_mean(StripeId stripe, std::vector<float> own) {
  const PageId page = stripes_.page_of(stripe, stripes_.rank());
  const auto found = pages_.find(page);
  if (found == pages_.end()) return {};
  own.resize(layout_.page_bytes() / found->second.element_bytes);
  kernels::divide(kernels::Dtype::kF32, own.data(), own.data(), own.size(), stripes_.ranks());
  std::vector<float>& mean = averages_[page];
  if (mean.empty()) {
    mean = std::move(own);
    return {};
  }
  const auto add = kernels::reduce_function(kernels::ReduceOp::kSum, kernels::Dtype::kF32);
  kernels::reduce(add, mean.data(), mean.data(), own.data(), mean.size(), sizeof(float));
  return {};
}

Status GradientShards::finish() {
  Status status;
  for (const auto& [id, stripe] : by_stripe_) {
    if (status.ok() && stripe.come > 0) status = reduce(id);
  }
  while (status.ok() && !under_way_.empty()) status = finish_first();
  if (!status.ok()) {
    drop();
    return status;
  }
  for (const auto& [index, given] : given_) averaged_.insert(index);
  used_ = false;
  end_pass();
  return {};
}

void GradientShards::end_pass() {
  given_.clear();
  for (auto& [id, stripe] : by_stripe_) stripe.come = 0;
}

void GradientShards::clear() {
  drop();
  used_ = false;
}

void GradientShards::drop() {
  clearing_ = true;
  while (!under_way_.empty()) static_cast<void>(finish_first());
  clearing_ = false;
  end_pass();
  done_.clear();
  averaged_.clear();
  averages_.clear();
}

std::vector<std::uint32_t> GradientShards::take_done() { return std::exchange(done_, {}); }

std::span<const float> GradientShards::on(PageId page) const {
  const auto found = averages_.find(page);
  return found == averages_.end() ? std::span<const float>() : found->second;
}

Result<double> GradientShards::norm(double order) {
  const bool largest = std::isinf(order);
  const auto add = [&](double sum, double part) {
    // A NaN stays one.
    return largest ? (part > sum || std::isnan(part) ? part : sum) : sum + part;
  };
  double own = 0;
  for (const auto& [page, mean] : averages_) {
    for (const float value : mean) {
      const double size = std::fabs(static_cast<double>(value));
      own = add(own, largest ? size : order == 2 ? size * size : std::pow(size, order));
    }
  }
  TACO_RETURN_IF_ERROR(lockstep_.barrier("take the norm of gradients", {}));
  auto all = gather_values(ranks_, own);
  TACO_RETURN_IF_ERROR(all.status());
  const double sum = std::accumulate(all->begin(), all->end(), 0.0, add);
  return largest ? sum : order == 2 ? std::sqrt(sum) : std::pow(sum, 1 / order);
}

Result<bool> GradientShards::unscale(float factor) {
  char what[64];  // with all digits: it is compared
  std::snprintf(what, sizeof what, "multiply gradients by %.9g", static_cast<double>(factor));
  TACO_RETURN_IF_ERROR(lockstep_.barrier(what, {}));
  const auto finite = [](float value) { return std::isfinite(value); };
  const bool here = std::all_of(averages_.begin(), averages_.end(), [&](const auto& mean) {
    return std::all_of(mean.second.begin(), mean.second.end(), finite);
  });
  auto all = gather_values(ranks_, static_cast<std::byte>(here ? 0 : 1));
  TACO_RETURN_IF_ERROR(all.status());
  multiply(factor);
  return std::count(all->begin(), all->end(), std::byte{}) < stripes_.ranks();
}

void GradientShards::multiply(float factor) {
  for (auto& [page, mean] : averages_) {
    for (float& value : mean) value *= factor;
  }
}

}  // namespace taco::zerocache
