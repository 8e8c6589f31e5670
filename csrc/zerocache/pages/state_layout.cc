#include "zerocache/pages/state_layout.h"

#include <algorithm>
#include <utility>

namespace taco::zerocache {
namespace {

constexpr StateKind kAllKinds[] = {StateKind::kExpAvg, StateKind::kExpAvgSq,
                                   StateKind::kMomentumBuffer, StateKind::kMaster};

constexpr std::string_view kMoments[] = {"row_var", "col_var", "variance"};

bool contains(std::span<const StateKind> kinds, StateKind kind) {
  return std::find(kinds.begin(), kinds.end(), kind) != kinds.end();
}

}  // namespace

std::string_view name_of(StateKind kind) {
  switch (kind) {
    case StateKind::kExpAvg:
      return "exp_avg";
    case StateKind::kExpAvgSq:
      return "exp_avg_sq";
    case StateKind::kMomentumBuffer:
      return "momentum_buffer";
    case StateKind::kMaster:
      return "master";
  }
  return "";
}

std::string state_name(std::string_view parameter, StateKind kind) {
  return state_name(parameter, name_of(kind));
}

std::string state_name(std::string_view parameter, std::string_view moments) {
  return std::string(parameter) + "/" + std::string(moments);
}

std::optional<std::string_view> parameter_of_state(std::string_view name) {
  const std::size_t slash = name.rfind('/');
  if (slash == std::string_view::npos) return std::nullopt;
  const std::string_view kind = name.substr(slash + 1);
  const auto is_called = [&](auto each) { return name_of(each) == kind; };
  const bool is_state =
      std::any_of(std::begin(kAllKinds), std::end(kAllKinds), is_called) ||
      std::find(std::begin(kMoments), std::end(kMoments), kind) != std::end(kMoments);
  return is_state ? std::optional(name.substr(0, slash)) : std::nullopt;
}

Result<StateLayout> StateLayout::append_to(Layout& layout,
                                           std::span<const std::uint32_t> parameters,
                                           std::span<const StateKind> kinds) {
  // Copies: the layout moves its own.
  std::vector<PlacedTensor> tensors;
  for (const std::uint32_t index : parameters) tensors.push_back(layout.tensors()[index]);
  std::sort(tensors.begin(), tensors.end(),
            [](const PlacedTensor& a, const PlacedTensor& b) { return a.offset < b.offset; });
  StateLayout state;
  for (const StateKind kind : kAllKinds) {
    if (contains(kinds, kind)) state.kinds_.push_back(kind);
  }
  for (const PlacedTensor& tensor : tensors) {
    const std::uint32_t element = tensor.element_bytes;
    if (element != kStateElementBytes && element != 2) {
      return Status(Code::kInvalidArgument,
                    "parameter '" + tensor.name + "' has elements of " + std::to_string(element) +
                        " bytes: only float32 and bfloat16 parameters have a state here");
    }
    if (element == 2 && !state.has(StateKind::kMaster)) state.kinds_.push_back(StateKind::kMaster);
    const Run pages = layout.pages_of(tensor);
    if (pages.count == 0) continue;
    const std::uint32_t end = pages.first + pages.count;
    Mirrored* last = state.runs_.empty() ? nullptr : &state.runs_.back();
    const bool follows = last != nullptr && last->parts == parts_of(element) &&
                         pages.first <= last->parameters.first + last->parameters.count;
    if (!follows) {
      state.runs_.push_back({{pages.first, 0}, parts_of(element), {}});
      last = &state.runs_.back();
    }
    last->parameters.count = std::max(last->parameters.count, end - last->parameters.first);
  }
  for (Mirrored& run : state.runs_) {
    run.first.fill(kNoPage);
    for (const StateKind kind : state.kinds_) {
      if (kind == StateKind::kMaster && run.parts == 1) continue;
      const std::uint64_t pages = std::uint64_t{run.parameters.count} * run.parts;
      const auto first = layout.reserve(pages);
      if (!first.ok()) return first.status();
      run.first[static_cast<int>(kind)] = first.value();
      state.state_.push_back({first.value(), static_cast<std::uint32_t>(pages)});
    }
  }
  for (const PlacedTensor& tensor : tensors) {
    if (tensor.bytes == 0) continue;
    const Mirrored& run = *state.run_of(layout.pages_of(tensor).first);
    const std::uint64_t start = std::uint64_t{run.parameters.first} * layout.page_bytes();
    for (const StateKind kind : state.kinds_) {
      const PageId first = run.first[static_cast<int>(kind)];
      if (first == kNoPage) continue;
      const TensorSpec spec = {state_name(tensor.name, kind), tensor.bytes * run.parts,
                               kStateElementBytes};
      const std::uint64_t offset =
          std::uint64_t{first} * layout.page_bytes() + (tensor.offset - start) * run.parts;
      if (const auto placed = layout.append_at(spec, offset); !placed.ok()) return placed.status();
    }
  }
  return state;
}

bool StateLayout::has(StateKind kind) const { return contains(kinds_, kind); }

const StateLayout::Mirrored* StateLayout::run_of(PageId page) const {
  const auto run = std::partition_point(runs_.begin(), runs_.end(), [&](const Mirrored& each) {
    return each.parameters.first + each.parameters.count <= page;
  });
  return run != runs_.end() && run->parameters.contains(page) ? &*run : nullptr;
}

PageId StateLayout::page_of(PageId parameters, std::uint32_t part, StateKind kind) const {
  const Mirrored* const run = run_of(parameters);
  if (run == nullptr) return kNoPage;
  const PageId first = run->first[static_cast<int>(kind)];
  if (first == kNoPage) return kNoPage;
  return first + (parameters - run->parameters.first) * run->parts + part;
}

bool StateLayout::is_state(PageId page) const {
  const auto run = std::partition_point(state_.begin(), state_.end(), [&](const Run& each) {
    return each.first + each.count <= page;
  });
  return run != state_.end() && run->contains(page);
}

StateKind StateLayout::kind_of(PageId page) const {
  for (const Mirrored& run : runs_) {
    for (const StateKind kind : kinds_) {
      const PageId first = run.first[static_cast<int>(kind)];
      const std::uint32_t count = run.parameters.count * run.parts;
      if (first != kNoPage && Run{first, count}.contains(page)) return kind;
    }
  }
  return StateKind::kMaster;
}

}  // namespace taco::zerocache
