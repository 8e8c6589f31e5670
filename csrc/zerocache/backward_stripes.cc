#include "zerocache/backward_stripes.h"

#include <algorithm>
#include <string>
#include <variant>
#include <vector>

#include "zerocache/sharded_step.h"

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
  if (std::holds_alternative<kernels::AdafactorStep>(step)) {
    return Status(Code::kUnsupported,
                  named +
                      " cannot be stepped in a backward pass: Adafactor needs its whole "
                      "gradient first, which no rank has");
  }
  if (updates_.contains(gradient.tensor) || stepped_.contains(gradient.tensor)) {
    return Status(Code::kInvalidArgument, named + " has two gradients in one step");
  }
  FinalGradient given = gradient;
  given.purpose = digest_of(step);
  updates_.emplace(gradient.tensor, step);
  return gradients_.add(given);
}

// Tensors of another pass, on the same page, have been stepped by then, or come later.
Status BackwardStripes::step(StripeId stripe, std::span<const std::uint32_t> tensors) {
  const PageId page = stripes_.page_of(stripe, stripes_.rank());
  std::vector<Update> updates;
  for (const std::uint32_t tensor : tensors) {
    updates.push_back(update_of(tensor, updates_.at(tensor)));
  }
  std::sort(updates.begin(), updates.end(), [&](const Update& a, const Update& b) {
    return layout_.tensors()[a.tensor].offset < layout_.tensors()[b.tensor].offset;
  });
  gathered_.release(stripe);  // before: others may be reading the page
  return updates.empty() ? Status() : step_.step_page(page, updates, gradients_);
}

Status BackwardStripes::finish() {
  TACO_RETURN_IF_ERROR(gradients_.finish());
  for (const auto& [tensor, step] : updates_) stepped_.insert(tensor);
  updates_.clear();
  return {};
}

void BackwardStripes::drop() {
  gradients_.clear();
  updates_.clear();
}

void BackwardStripes::forget() {
  drop();
  stepped_.clear();
}

}  // namespace taco::zerocache
