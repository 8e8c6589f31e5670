#include "zerocache/ranks/zero3/backward_stripes.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <variant>
#include <vector>

#include "zerocache/ranks/zero1/sharded_step.h"

namespace taco::zerocache {
namespace {

// Each has a gradient, of which this rank has a part.
constexpr float kPresent = 0;

Update update_of(std::uint32_t tensor, const StepConstants& step) {
  return {tensor, &kPresent, false, step};
}

}  // namespace

BackwardStripes::BackwardStripes(const StripedStep& step, const Layout& layout,
                                 const Stripes& stripes, const OptimizerStream& stream,
                                 GradientShards& gradients, GatheredPages& gathered)
    : step_(step),
      layout_(layout),
      stripes_(stripes),
      stream_(stream),
      gradients_(gradients),
      gathered_(gathered) {
  gradients_.use_averages([this](StripeId stripe, std::span<const std::uint32_t> tensors) {
    return this->step(stripe, tensors);
  });
}

Status BackwardStripes::add(const FinalGradient& gradient, const StepConstants& step) {
  const Update update = update_of(gradient.tensor, step);
  TACO_RETURN_IF_ERROR(stream_.check({&update, 1}));
  const std::string named = "parameter '" + layout_.tensors()[gradient.tensor].name + "'";
  if (updates_.contains(gradient.tensor) || stepped_.contains(gradient.tensor)) {
    return Status(Code::kInvalidArgument, named + " has two gradients in one step");
  }
  FinalGradient given = gradient;
  given.purpose = digest_of(step);
  updates_.emplace(gradient.tensor, step);
  const Run run = layout_.pages_of(layout_.tensors()[gradient.tensor]);
  if (std::holds_alternative<kernels::AdafactorStep>(step) && run.count > 0) {
    const StripeId last = stripes_.stripe_of(run.first + run.count - 1);
    whole_[gradient.tensor] = last - stripes_.stripe_of(run.first) + 1;
  }
  return gradients_.add(given);
}

// The updates by rising place.
std::vector<Update> BackwardStripes::updates_of(std::span<const std::uint32_t> tensors) const {
  std::vector<Update> updates;
  for (const std::uint32_t tensor : tensors) {
    updates.push_back(update_of(tensor, updates_.at(tensor)));
  }
  sort_by_place(layout_, updates);
  return updates;
}

// Tensors of another pass, on the same page, have been stepped by then, or come later.
Status BackwardStripes::step(StripeId stripe, std::span<const std::uint32_t> tensors) {
  if (!whole_.empty()) return step_whole(stripe);
  const PageId page = stripes_.page_of(stripe, stripes_.rank());
  gathered_.release(stripe);  // before: others may be reading the page
  const std::vector<Update> updates = updates_of(tensors);
  Status stepped = updates.empty() ? Status() : step_.step_page(page, updates, gradients_);
  gradients_.use_up(page);
  return stepped;
}

// Tensors on any rank's page, so that all ranks come to the same ones.
Status BackwardStripes::step_whole(StripeId stripe) {
  std::set<std::uint32_t> there;
  for (int rank = 0; rank < stripes_.ranks(); ++rank) {
    const PageId page = stripes_.page_of(stripe, rank);
    if (page == kNoPage) continue;
    const auto tensors = layout_.tensors_on(page);
    there.insert(tensors.begin(), tensors.end());
  }
  std::vector<std::uint32_t> complete;
  for (const std::uint32_t tensor : there) {
    const auto whole = whole_.find(tensor);
    if (whole != whole_.end() && --whole->second == 0) complete.push_back(tensor);
  }
  if (!complete.empty()) TACO_RETURN_IF_ERROR(step_measured(updates_of(complete)));
  const PageId own = stripes_.page_of(stripe, stripes_.rank());
  if (!waits(own)) gradients_.use_up(own);
  return {};
}

Status BackwardStripes::step_measured(std::vector<Update> updates) {
  const auto measures = step_.measure(updates, gradients_);
  if (!measures.ok()) return measures.status();
  std::set<PageId> own;
  for (const Update& update : updates) {
    const Run run = layout_.pages_of(layout_.tensors()[update.tensor]);
    for (PageId page = run.first; page < run.first + run.count; ++page) {
      gathered_.release(stripes_.stripe_of(page));
      if (stripes_.owns(page)) own.insert(page);
    }
  }
  for (const PageId page : own) {
    std::vector<Update> here;
    std::copy_if(updates.begin(), updates.end(), std::back_inserter(here), [&](const Update& each) {
      return layout_.pages_of(layout_.tensors()[each.tensor]).contains(page);
    });
    TACO_RETURN_IF_ERROR(step_.step_page(page, here, gradients_));
    if (!waits(page)) gradients_.use_up(page);
  }
  return {};
}

// Whether means there are still needed.
bool BackwardStripes::waits(PageId page) const {
  if (page == kNoPage) return false;
  const auto tensors = layout_.tensors_on(page);
  return std::any_of(tensors.begin(), tensors.end(), [&](std::uint32_t tensor) {
    const auto whole = whole_.find(tensor);
    return whole != whole_.end() && whole->second > 0;
  });
}

Status BackwardStripes::finish() {
  TACO_RETURN_IF_ERROR(gradients_.finish());
  for (const auto& [tensor, step] : updates_) stepped_.insert(tensor);
  updates_.clear();
  whole_.clear();
  return {};
}

void BackwardStripes::drop() {
  gradients_.clear();
  updates_.clear();
  whole_.clear();
}

void BackwardStripes::forget() {
  drop();
  stepped_.clear();
}

}  // namespace taco::zerocache
