#include "zerocache/ranks/zero3/striped_step.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "zerocache/pages/touched_pages.h"
#include "zerocache/ranks/agreement.h"
#include "zerocache/ranks/zero1/sharded_step.h"

namespace taco::zerocache {

Status StripedStep::check(std::span<const Update> updates, const GradientShards& gradients) const {
  TACO_RETURN_IF_ERROR(stream_.check(updates));
  for (const Update& update : updates) {
    const std::string named = "parameter '" + layout_.tensors()[update.tensor].name + "'";
    if (!gradients.has(update.tensor)) {
      return Status(Code::kInvalidArgument, named + " is to be stepped without a gradient");
    }
  }
  return {};
}

// The updates by their places. Each has a gradient, of which this rank has a part.
std::vector<Update> StripedStep::sorted(std::span<const StripedUpdate> updates) const {
  static constexpr float kPresent = 0;
  std::vector<Update> found;
  for (const StripedUpdate& each : updates) {
    found.push_back({each.tensor, &kPresent, false, each.step});
  }
  sort_by_place(layout_, found);
  return found;
}

Status StripedStep::agree_on(std::span<const StripedUpdate> updates,
                             const GradientShards& gradients, const Status& own) {
  TACO_RETURN_IF_ERROR(lockstep_.barrier("step", {}));
  const std::vector<Update> all = sorted(updates);
  return agree_on_step(ranks_, layout_, all, own.ok() ? check(all, gradients) : own);
}

Status StripedStep::run(std::span<const StripedUpdate> updates, const GradientShards& gradients) {
  std::vector<Update> all = sorted(updates);
  std::erase_if(all,
                [&](const Update& update) { return layout_.tensors()[update.tensor].bytes == 0; });
  AdafactorMeasures measures;
  Status own;
  if (has_adafactor(all)) {
    auto measured = measure_all(all, gradients);
    if (!measured.ok()) return measured.status();
    measures = std::move(measured).value();
    own = begin_measured(stream_, measures, all);
  }
  const auto tensor_of = [](const Update& update) { return update.tensor; };
  const auto step = [&](PageId page, std::span<const Update> there) {
    return stripes_.owns(page) ? step_page(page, there, gradients) : Status();
  };
  if (own.ok()) {
    own = for_each_touched_page(layout_, std::span<const Update>(all), tensor_of, step);
  }
  return agree(ranks_, own);
}

Result<AdafactorMeasures> StripedStep::measure_all(std::span<const Update> updates,
                                                   const GradientShards& gradients) {
  const auto parts_of = [&](const Update& update) { return parts(update, gradients); };
  return measure_parts(ranks_, layout_, stream_, updates, parts_of);
}

Result<AdafactorMeasures> StripedStep::measure(std::span<Update> updates,
                                               const GradientShards& gradients) {
  TACO_RETURN_IF_ERROR(lockstep_.barrier("measure gradients", {}));
  auto measured = measure_all(updates, gradients);
  if (!measured.ok()) return measured.status();
  TACO_RETURN_IF_ERROR(begin_measured(stream_, measured.value(), updates));
  return measured;
}

// Where the elements of a tensor that lie on a page are: in the tensor, and among the page's
// elements.
StripedStep::Place StripedStep::place(const PlacedTensor& tensor, PageId page) const {
  const std::uint64_t start = std::uint64_t{page} * layout_.page_bytes();
  const std::uint64_t begin = std::max(tensor.offset, start);
  const std::uint64_t end = std::min(tensor.offset + tensor.bytes, start + layout_.page_bytes());
  return {(begin - tensor.offset) / tensor.element_bytes, (begin - start) / tensor.element_bytes,
          (end - begin) / tensor.element_bytes};
}

// The parts of the update's gradient that this rank has.
std::vector<GradientPart> StripedStep::parts(const Update& update,
                                             const GradientShards& gradients) const {
  const PlacedTensor& tensor = layout_.tensors()[update.tensor];
  const Run run = layout_.pages_of(tensor);
  std::vector<GradientPart> found;
  for (PageId page = run.first; page < run.first + run.count; ++page) {
    if (!stripes_.owns(page)) continue;
    const Place here = place(tensor, page);
    found.push_back(
        {page, here.in_tensor, gradients.on(page).subspan(here.on_page, here.elements)});
  }
  return found;
}

Status StripedStep::step_page(PageId page, std::span<const Update> updates,
                              const GradientShards& gradients) {
  std::vector<Update> here(updates.begin(), updates.end());
  for (Update& update : here) {
    const Place own = place(layout_.tensors()[update.tensor], page);
    update.gradient = gradients.on(page).data() + own.on_page;
    update.first = own.in_tensor;
  }
  return stream_.step_page(page, here)
      .with_prefix("the optimizer's step ended before " + layout_.describe(page) + ": ");
}

}  // namespace taco::zerocache
