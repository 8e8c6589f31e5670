#include "zerocache/ranks/zero3/gather_order.h"

#include <algorithm>
#include <cstdint>

namespace taco::zerocache {

void GatherOrder::begin_run(const std::string& name) {
  run_ = &runs_[name];
  last_used_.clear();
  run_->begin_run();
  look_ahead();
}

void GatherOrder::end_run() {
  if (run_ != nullptr) run_->end_run();
  run_ = nullptr;
  look_ahead();
}

void GatherOrder::forget() {
  runs_.clear();
  run_ = nullptr;
  look_ahead();
}

void GatherOrder::begin(OperatorKey key, std::vector<StripeId> stripes) {
  if (run_ != nullptr) {
    if (run_->is_endless(places_.size())) {
      run_->end_run();
      run_->begin_run();
    }
    std::vector<Access> accesses;
    accesses.reserve(stripes.size());
    for (const StripeId stripe : stripes) accesses.push_back({.page = stripe});
    run_->begin(key, accesses);
  }
  for (const StripeId stripe : stripes) use(stripe);
  open_.emplace_back(key, std::move(stripes));
  look_ahead();
}

void GatherOrder::use(StripeId stripe) {
  std::erase(last_used_, stripe);
  last_used_.insert(last_used_.begin(), stripe);
  if (last_used_.size() > max_) last_used_.pop_back();
}

bool GatherOrder::end(OperatorKey key) {
  const auto use = std::find_if(open_.rbegin(), open_.rend(),
                                [key](const auto& each) { return each.first == key; });
  if (use == open_.rend()) return false;
  open_.erase(std::next(use).base());
  look_ahead();
  return true;
}

// False where there is no room for more.
bool GatherOrder::want(StripeId stripe, std::size_t most) {
  if (wants(stripe)) return true;
  if (wanted_.size() >= most) return false;
  if (stripe >= places_.size()) places_.resize(stripe + 1);
  places_[stripe] = wanted_.size();
  wanted_.push_back(stripe);
  return true;
}

void GatherOrder::look_ahead() {
  wanted_.clear();
  for (const auto& [key, stripes] : open_) {
    for (const StripeId stripe : stripes) want(stripe, SIZE_MAX);
  }
  in_use_ = wanted_.size();
  if (run_ == nullptr) return;
  // Where the program has left every known way, what it will use is not known until it is found
  // again.
  if (!run_->known() || run_->off_course()) {
    for (const StripeId stripe : last_used_) want(stripe, max_);
    return;
  }
  const auto want_all = [this](const Use& use) {
    return std::all_of(use.accesses.begin(), use.accesses.end(),
                       [this](const Access& access) { return want(access.page, max_); });
  };
  for (const Use& use : run_->rest_of_detour()) {
    if (!want_all(use)) return;
  }
  const std::vector<Use>& uses = run_->trace().uses();
  for (auto at = static_cast<std::size_t>(run_->position()); at < uses.size(); ++at) {
    if (!want_all(uses[at])) return;
  }
}

}  // namespace taco::zerocache
