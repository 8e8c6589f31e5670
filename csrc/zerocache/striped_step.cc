#include "zerocache/striped_step.h"

#include <algorithm>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "zerocache/agreement.h"
#include "zerocache/sharded_step.h"
#include "zerocache/touched_pages.h"

namespace taco::zerocache {

Status StripedStep::check(std::span<const Update> updates, const GradientShards& gradients) const {
  TACO_RETURN_IF_ERROR(stream_.check(updates));
  for (const Update& update : updates) {
    const std::string named = "parameter '" + layout_.tensors()[update.tensor].name + "'";
    if (std::holds_alternative<kernels::AdafactorStep>(update.step)) {
      return Status(Code::kUnsupported,
                    named + " is spread over ranks, and Adafactor needs its whole gradient");
    }
    if (!gradients.has(update.tensor)) {
      return Status(Code::kInvalidArgument, named + " is to be stepped without a gradient");
    }
  }
  return {};
}

// By their places. Each has a gradient, of which this rank has a part.
std::vector<Update> StripedStep::sorted(std::span<const StripedUpdate> updates) const {
  static constexpr float kPresent = 0;
  std::vector<Update> found;
  for (const StripedUpdate& each : updates) {
    found.push_back({each.tensor, &kPresent, false, each.step});
  }
  std::sort(found.begin(), found.end(), [&](const Update& a, const Update& b) {
    return layout_.tensors()[a.tensor].offset < layout_.tensors()[b.tensor].offset;
  });
  return found;
}

Status StripedStep::agree_on(std::span<const StripedUpdate> updates,
                             const GradientShards& gradients, const Status& own) {
  TACO_RETURN_IF_ERROR(lockstep_.meet("step", {}));
  const std::vector<Update> all = sorted(updates);
  return agree_on_step(ranks_, layout_, all, own.ok() ? check(all, gradients) : own);
}

Status StripedStep::run(std::span<const StripedUpdate> updates, const GradientShards& gradients) {
  std::vector<Update> all = sorted(updates);
  std::erase_if(all,
                [&](const Update& update) { return layout_.tensors()[update.tensor].bytes == 0; });
  const auto tensor_of = [](const Update& update) { return update.tensor; };
  const Status own = for_each_touched_page(
      layout_, std::span<const Update>(all), tensor_of,
      [&](PageId page, std::span<const Update> there) {
        return stripes_.owns(page) ? step_page(page, there, gradients) : Status();
      });
  return agree(ranks_, own);
}

Status StripedStep::step_page(PageId page, std::span<const Update> updates,
                              const GradientShards& gradients) {
  const std::span<const float> means = gradients.on(page);
  const std::uint64_t start = std::uint64_t{page} * layout_.page_bytes();
  std::vector<Update> here(updates.begin(), updates.end());
  for (Update& update : here) {
    const PlacedTensor& tensor = layout_.tensors()[update.tensor];
    const std::uint64_t begin = std::max(tensor.offset, start);
    update.gradient = means.data() + (begin - start) / tensor.element_bytes;
    update.first = (begin - tensor.offset) / tensor.element_bytes;
  }
  return stream_.step_page(page, here)
      .with_prefix("the optimizer's step ended before " + layout_.describe(page) + ": ");
}

}  // namespace taco::zerocache
