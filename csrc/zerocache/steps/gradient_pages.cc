#include "zerocache/steps/gradient_pages.h"

#include <algorithm>
#include <string>

#include "base/assert.h"
#include "zerocache/mover/tensor_bytes.h"

namespace taco::zerocache {
namespace {

std::string described(const PlacedTensor& parameter) {
  return "the gradient of parameter '" + parameter.name + "': ";
}

}  // namespace

Result<GradientPages> GradientPages::append_to(Layout& layout,
                                               std::span<const std::uint32_t> parameters) {
  std::vector<Run> runs;
  for (const std::uint32_t index : parameters) {
    const Run run = layout.pages_of(layout.tensors()[index]);
    if (run.count > 0) runs.push_back(run);
  }
  std::sort(runs.begin(), runs.end(), [](const Run& a, const Run& b) { return a.first < b.first; });
  GradientPages made;
  for (const Run& run : runs) {
    const bool follows = !made.runs_.empty() && run.first <= made.runs_.back().parameters.first +
                                                                 made.runs_.back().parameters.count;
    if (!follows) made.runs_.push_back({{run.first, 0}, kNoPage});
    Run& all = made.runs_.back().parameters;
    all.count = std::max(all.count, run.first + run.count - all.first);
  }
  for (Mirrored& run : made.runs_) {
    const auto first = layout.reserve(run.parameters.count);
    if (!first.ok()) return first.status();
    run.first = first.value();
    made.count_ += run.parameters.count;
  }
  return made;
}

const GradientPages::Mirrored* GradientPages::run_of(PageId parameters) const {
  const auto run = std::partition_point(runs_.begin(), runs_.end(), [&](const Mirrored& each) {
    return each.parameters.first + each.parameters.count <= parameters;
  });
  return run != runs_.end() && run->parameters.contains(parameters) ? &*run : nullptr;
}

PageId GradientPages::page_of(PageId parameters) const {
  const Mirrored* const run = run_of(parameters);
  return run == nullptr ? kNoPage : run->first + (parameters - run->parameters.first);
}

bool GradientPages::is_gradient(PageId page) const {
  return std::any_of(runs_.begin(), runs_.end(), [page](const Mirrored& run) {
    return Run{run.first, run.parameters.count}.contains(page);
  });
}

PlacedTensor GradientPages::mirror_of(const Layout& layout, std::uint32_t parameter) const {
  PlacedTensor mirror = layout.tensors()[parameter];
  const PageId page = page_of(layout.pages_of(mirror).first);
  if (page == kNoPage) mirror.bytes = 0;  // it is none of these, or empty
  mirror.offset = page * std::uint64_t{layout.page_bytes()} + mirror.offset % layout.page_bytes();
  return mirror;
}

Status GradientPages::keep(PageUses& pages, const Layout& layout, std::uint32_t parameter,
                           std::span<const std::byte> gradient) {
  const PlacedTensor mirror = mirror_of(layout, parameter);
  if (gradient.size() != mirror.bytes) {
    return Status(Code::kInvalidArgument, described(mirror) + std::to_string(gradient.size()) +
                                              " bytes, instead of " + std::to_string(mirror.bytes));
  }
  kept_.erase(parameter);
  TACO_RETURN_IF_ERROR(write_bytes(pages, layout.page_bytes(), mirror, Tier::kHost, 0, gradient)
                           .with_prefix(described(mirror)));
  kept_.insert(parameter);
  return {};
}

Status GradientPages::read(PageUses& pages, const Layout& layout, std::uint32_t parameter,
                           std::span<std::byte> to) const {
  const PlacedTensor mirror = mirror_of(layout, parameter);
  TACO_ASSERT(holds(parameter) && to.size() == mirror.bytes);
  return read_bytes(pages, layout.page_bytes(), mirror, Tier::kHost, 0, to)
      .with_prefix(described(mirror));
}

Status GradientPages::drop(PageUses& pages) {
  kept_.clear();
  for (const Mirrored& run : runs_) {
    TACO_RETURN_IF_ERROR(give_up(pages, kDropKeys, {run.first, run.parameters.count}));
  }
  return {};
}

}  // namespace taco::zerocache
