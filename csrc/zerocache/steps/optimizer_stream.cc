#include "zerocache/steps/optimizer_stream.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "base/timeline.h"
#include "zerocache/pages/touched_pages.h"
#include "zerocache/steps/adafactor_state.h"

namespace taco::zerocache {
namespace {

using kernels::ParameterRange;

constexpr std::size_t kElement = kStateElementBytes;
// The boundary that a worker's part begins at: a line of every array, of bfloat16 ones too.
constexpr std::size_t kElementsOfLine = 32;
// Under Adafactor, master copies are compared this many at a time, so that they are in a cache when
// they are stepped.
constexpr std::size_t kComparedAtOnce = 8192;

// By StateKind; null where there is none.
using States = std::array<float*, kStateKinds>;

float*& at(States& states, StateKind kind) { return states[static_cast<std::size_t>(kind)]; }

// The states that a step reads and writes.
std::vector<StateKind> kinds_of(const StepConstants& step) {
  if (const auto* sgd = std::get_if<kernels::SgdStep>(&step)) {
    if (sgd->momentum == 0) return {};
    return {StateKind::kMomentumBuffer};
  }
  if (std::holds_alternative<kernels::LionStep>(step)) return {StateKind::kExpAvg};
  if (std::holds_alternative<kernels::AdafactorStep>(step)) return {};  // mirrors no pages
  return {StateKind::kExpAvg, StateKind::kExpAvgSq};
}

void apply(const StepConstants& constants, const ParameterRange& range, States states) {
  if (const auto* adam = std::get_if<kernels::AdamStep>(&constants)) {
    kernels::adam(*adam, range, at(states, StateKind::kExpAvg), at(states, StateKind::kExpAvgSq));
  } else if (const auto* sgd = std::get_if<kernels::SgdStep>(&constants)) {
    float* const buffer = at(states, StateKind::kMomentumBuffer);
    kernels::sgd(*sgd, range, sgd->momentum == 0 ? nullptr : buffer);
  } else {
    kernels::lion(std::get<kernels::LionStep>(constants), range, at(states, StateKind::kExpAvg));
  }
}

}  // namespace

// One part of a page of parameters and its pages of state. Elements are counted from its start.
struct OptimizerStream::Chunk {
  struct State {
    StateKind kind;
    PageId page;
    bool holds;  // otherwise it is arbitrary bytes, to be zeros
    float* memory;
  };

  OperatorKey key = 0;
  PageId page = kNoPage;
  std::size_t element_bytes = kElement;  // of the parameters
  std::uint64_t begin = 0;               // in elements of the store's range, if all were as these
  std::size_t elements = 0;
  std::span<const Part> parts = {};  // that touch it
  std::vector<State> states = {};
  std::byte* parameters = nullptr;  // its own part
  PageId gradient_page = kNoPage;   // kNoPage: all gradients are in memory
  std::byte* gradients = nullptr;   // its own part
  bool last = true;                 // of the page's
};

class OptimizerStream::OpenChunk {
 public:
  std::vector<Update> updates;
  std::vector<Part> parts;  // of these
  Chunk chunk;              // with these
};

void sort_by_place(const Layout& layout, std::vector<Update>& updates) {
  std::sort(updates.begin(), updates.end(), [&](const Update& a, const Update& b) {
    return layout.tensors()[a.tensor].offset < layout.tensors()[b.tensor].offset;
  });
}

Result<std::unique_ptr<OptimizerStream>> OptimizerStream::make(
    PageUses& pages, const Layout& layout, const StateLayout& state,
    const OptimizerStreamOptions& options) {
  auto workers = Workers::start(options.threads, "taco-optimizer");
  if (!workers.ok()) return workers.status();
  return std::unique_ptr<OptimizerStream>(new OptimizerStream(
      pages, layout, state, options.parameter_tier, std::move(workers).value()));
}

Status OptimizerStream::check(const Update& update) const {
  if (update.tensor >= layout_.tensors().size()) {
    return Status(Code::kInvalidArgument, "an update of tensor " + std::to_string(update.tensor) +
                                              ", but the layout has only " +
                                              std::to_string(layout_.tensors().size()));
  }
  const PlacedTensor& tensor = layout_.tensors()[update.tensor];
  if (tensor.bytes == 0) return {};
  const std::string described = "parameter '" + tensor.name + "'";
  const PageId page = layout_.pages_of(tensor).first;
  if (!state_.covers(page) || StateLayout::parts_of(tensor.element_bytes) == 0) {
    return Status(Code::kInvalidArgument, described + " has no optimizer state");
  }
  // By name: the page of another tensor that it shares may have a state that is not its own.
  std::vector<StateKind> kinds = kinds_of(update.step);
  if (tensor.element_bytes != kElement) kinds.push_back(StateKind::kMaster);
  for (const StateKind kind : kinds) {
    if (layout_.find(state_name(tensor.name, kind)) == nullptr) {
      return Status(
          Code::kInvalidArgument,
          described + " has no state '" + std::string(name_of(kind)) + "', which its step needs");
    }
  }
  if (const auto* adafactor = std::get_if<kernels::AdafactorStep>(&update.step)) {
    if (!has_adafactor_state(layout_, tensor, adafactor->shape)) {
      return Status(Code::kInvalidArgument,
                    described + " has no state of Adafactor for the shape of this step");
    }
  }
  return check_gradient(update);
}

Status OptimizerStream::check_gradient(const Update& update) const {
  const bool on_pages = gradients_ != nullptr && gradients_->holds(update.tensor);
  if (on_pages == (update.gradient == nullptr)) return {};
  return Status(Code::kInvalidArgument,
                "parameter '" + layout_.tensors()[update.tensor].name +
                    (on_pages ? "' has a gradient in memory and another on pages"
                              : "' is to be stepped without a gradient"));
}

Result<std::vector<OptimizerStream::Part>> OptimizerStream::sorted(
    std::span<const Update> updates) const {
  std::vector<Part> parts;
  for (const Update& update : updates) {
    TACO_RETURN_IF_ERROR(check(update));
    const PlacedTensor& tensor = layout_.tensors()[update.tensor];
    const std::uint64_t begin = tensor.offset / tensor.element_bytes;
    const std::uint64_t end = begin + tensor.bytes / tensor.element_bytes;
    if (end > begin) parts.push_back({&update, begin, end});
  }
  const auto offset = [&](const Part& part) {
    return layout_.tensors()[part.update->tensor].offset;
  };
  std::sort(parts.begin(), parts.end(),
            [&](const Part& a, const Part& b) { return offset(a) < offset(b); });
  const auto twice = std::adjacent_find(
      parts.begin(), parts.end(),
      [](const Part& a, const Part& b) { return a.update->tensor == b.update->tensor; });
  if (twice == parts.end()) return parts;
  return Status(Code::kInvalidArgument, "parameter '" +
                                            layout_.tensors()[twice->update->tensor].name +
                                            "' has two updates in one step");
}

Status OptimizerStream::check(std::span<const Update> updates) const {
  return sorted(updates).status();
}

Status OptimizerStream::step(std::span<const Update> updates) {
  auto parts = sorted(updates);
  if (!parts.ok()) return parts.status();
  const auto whole = std::stable_partition(parts->begin(), parts->end(), [](const Part& part) {
    return !std::holds_alternative<kernels::AdafactorStep>(part.update->step);
  });
  TACO_RETURN_IF_ERROR(step_pages({parts->begin(), whole}));
  for (auto part = whole; part != parts->end(); ++part) {
    const std::string& name = layout_.tensors()[part->update->tensor].name;
    const bool on_pages = part->update->gradient == nullptr;
    const Status stepped =
        on_pages ? step_adafactor_from_pages(*part) : step_adafactor(*part, nullptr);
    TACO_RETURN_IF_ERROR(stepped.with_prefix("the optimizer's step ended at '" + name + "': "));
  }
  return {};
}

Status OptimizerStream::step_pages(std::span<const Part> parts) {
  return for_each_touched_page(
      layout_, parts, [](const Part& part) { return part.update->tensor; },
      [&](PageId page, std::span<const Part> there) {
        return step_chunks(page, there)
            .with_prefix("the optimizer's step ended before " + layout_.describe(page) + ": ");
      });
}

// `parts`, sorted, all touch the page, so their elements are of one size.
OptimizerStream::Chunk OptimizerStream::make_chunk(PageId page, std::uint32_t part,
                                                   std::span<const Part> parts) const {
  const std::size_t element = layout_.tensors()[parts.front().update->tensor].element_bytes;
  const std::uint32_t count = StateLayout::parts_of(static_cast<std::uint32_t>(element));
  const std::size_t elements = layout_.page_bytes() / kElement;
  Chunk chunk{.key = kChunkKeys + std::uint64_t{page} * 2 + part,
              .page = page,
              .element_bytes = element,
              .begin = (std::uint64_t{page} * count + part) * elements,
              .elements = elements,
              .last = part + 1 == count};
  const auto first = std::partition_point(
      parts.begin(), parts.end(), [&](const Part& each) { return each.end <= chunk.begin; });
  const auto last = std::partition_point(
      first, parts.end(), [&](const Part& each) { return each.begin < chunk.begin + elements; });
  chunk.parts = {first, last};
  const auto use = [&](StateKind kind) {
    const auto same = [&](const Chunk::State& state) { return state.kind == kind; };
    if (std::any_of(chunk.states.begin(), chunk.states.end(), same)) return;
    const PageId state = state_.page_of(page, part, kind);
    chunk.states.push_back({kind, state, pages_.has_content(state), nullptr});
  };
  for (const Part& each : chunk.parts) {
    for (const StateKind kind : kinds_of(each.update->step)) use(kind);
    if (each.update->gradient == nullptr) chunk.gradient_page = gradients_->page_of(page);
  }
  if (count > 1 && !chunk.parts.empty()) use(StateKind::kMaster);
  return chunk;
}

Status OptimizerStream::step_chunks(PageId page, std::span<const Part> parts) {
  const std::size_t element = layout_.tensors()[parts.front().update->tensor].element_bytes;
  const std::uint32_t count = StateLayout::parts_of(static_cast<std::uint32_t>(element));
  for (std::uint32_t part = 0; part < count; ++part) {
    Chunk chunk = make_chunk(page, part, parts);
    if (chunk.parts.empty()) continue;
    TACO_RETURN_IF_ERROR(begin(chunk));
    compute(chunk);
    pages_.end(chunk.key);
  }
  return {};
}

Status OptimizerStream::begin(Chunk& chunk) {
  std::vector<Access> accesses = {access_in(parameter_tier_, chunk.page, true, true)};
  for (const Chunk::State& state : chunk.states) {
    accesses.push_back({state.page, Tier::kHost, state.holds, true});
  }
  if (chunk.gradient_page != kNoPage) {
    accesses.push_back({chunk.gradient_page, Tier::kHost, true, false, chunk.last});
  }
  TACO_RETURN_IF_ERROR(pages_.begin(chunk.key, accesses));
  const std::uint64_t first = chunk.begin * chunk.element_bytes;
  chunk.parameters =
      pages_.address(chunk.page, pages_.tier_of(chunk.page)) + first % layout_.page_bytes();
  for (Chunk::State& state : chunk.states) {
    state.memory = reinterpret_cast<float*>(pages_.address(state.page, Tier::kHost));
  }
  if (chunk.gradient_page != kNoPage) {
    chunk.gradients =
        pages_.address(chunk.gradient_page, Tier::kHost) + first % layout_.page_bytes();
  }
  return {};
}

void OptimizerStream::compute(const Chunk& chunk) {
  ++changes_;
  const Time started = monotonic_now();
  workers_->run([&](unsigned worker) { compute(chunk, worker); });
  if (!timeline::enabled()) return;
  timeline::add({.name = layout_.describe(chunk.page),
                 .track = "optimizer",
                 .started = started,
                 .ended = monotonic_now()});
}

Result<std::vector<OptimizerStream::Part>> OptimizerStream::parts_on(
    PageId page, std::span<const Update> updates) const {
  auto parts = sorted(updates);
  if (!parts.ok()) return parts.status();
  std::erase_if(*parts, [&](const Part& part) {
    return !layout_.pages_of(layout_.tensors()[part.update->tensor]).contains(page);
  });
  for (Part& part : *parts) {
    if (!std::holds_alternative<kernels::AdafactorStep>(part.update->step)) continue;
    if (const AdafactorMeasure* const measure = part.update->measure) {
      part.moments = measure->moments();
      part.factor = measure->factor();
      continue;
    }
    return Status(Code::kInvalidArgument,
                  "parameter '" + layout_.tensors()[part.update->tensor].name +
                      "' cannot be stepped page by page: Adafactor needs its whole gradient first");
  }
  return parts;
}

Status OptimizerStream::step_page(PageId page, std::span<const Update> updates) {
  auto parts = parts_on(page, updates);
  if (!parts.ok()) return parts.status();
  if (parts->empty()) return {};
  return step_chunks(page, *parts);
}

Result<std::shared_ptr<OptimizerStream::OpenChunk>> OptimizerStream::begin_chunk(
    PageId page, std::uint32_t part, std::span<const Update> updates) {
  auto open = std::make_shared<OpenChunk>();
  open->updates.assign(updates.begin(), updates.end());
  auto parts = parts_on(page, open->updates);
  if (!parts.ok()) return parts.status();
  if (parts->empty()) return std::shared_ptr<OpenChunk>();
  open->parts = std::move(parts).value();
  open->chunk = make_chunk(page, part, open->parts);
  if (open->chunk.parts.empty()) return std::shared_ptr<OpenChunk>();
  TACO_RETURN_IF_ERROR(
      begin(open->chunk)
          .with_prefix("the optimizer's step ended before " + layout_.describe(page) + ": "));
  return open;
}

void OptimizerStream::compute(const OpenChunk& open) { compute(open.chunk); }

void OptimizerStream::end(const OpenChunk& open) { pages_.end(open.chunk.key); }

// Elements of the store's range, of one tensor.
void OptimizerStream::step_elements(const Chunk& chunk, const Part& part, std::uint64_t begin,
                                    std::uint64_t end) {
  const Update& update = *part.update;
  const auto range_of = [&](std::uint64_t from, std::size_t count) {
    ParameterRange range{.count = count};
    const bool on_pages = update.gradient == nullptr;
    const void* const gradient = on_pages ? chunk.gradients : update.gradient;
    const std::uint64_t in_gradient = from - (on_pages ? chunk.begin : part.begin + update.first);
    if (on_pages ? chunk.element_bytes != kElement : update.bf16_gradient) {
      range.bf16_gradient = static_cast<const std::uint16_t*>(gradient) + in_gradient;
    } else {
      range.gradient = static_cast<const float*>(gradient) + in_gradient;
    }
    return range;
  };
  const auto states_at = [&](std::size_t place) {
    States states = {};
    for (const Chunk::State& state : chunk.states) at(states, state.kind) = state.memory + place;
    return states;
  };
  const auto apply_to = [&](const ParameterRange& range, std::uint64_t from, const States& states) {
    if (const auto* step = std::get_if<kernels::AdafactorStep>(&update.step)) {
      kernels::adafactor(*step, part.moments, part.factor, from - part.begin, range);
    } else {
      apply(update.step, range, states);
    }
  };
  const bool is_adafactor = std::holds_alternative<kernels::AdafactorStep>(update.step);
  const bool halves = chunk.element_bytes != kElement;
  while (begin < end) {
    const std::size_t place = begin - chunk.begin;
    // Up to a line of all arrays, wherever the tensor begins.
    const std::size_t count =
        halves && is_adafactor
            ? std::min<std::uint64_t>(end - begin, kComparedAtOnce - place % kElementsOfLine)
            : end - begin;
    const States states = states_at(place);
    ParameterRange range = range_of(begin, count);
    if (halves) {
      range.parameter = states[static_cast<std::size_t>(StateKind::kMaster)];
      range.bf16_parameter = reinterpret_cast<std::uint16_t*>(chunk.parameters) + place;
      // Other steps do so themselves.
      if (is_adafactor) kernels::adopt_parameters(range.bf16_parameter, range.parameter, count);
    } else {
      range.parameter = reinterpret_cast<float*>(chunk.parameters) + place;
    }
    apply_to(range, begin, states);
    begin += count;
  }
}

// A worker's share of the chunk: neighbouring elements, so that no two touch a line.
void OptimizerStream::compute(const Chunk& chunk, unsigned worker) const {
  const std::size_t lines = chunk.elements / kElementsOfLine;
  const std::uint64_t from = lines * worker / workers_->count() * kElementsOfLine;
  const std::uint64_t to = lines * (worker + 1) / workers_->count() * kElementsOfLine;
  for (const Chunk::State& state : chunk.states) {
    if (!state.holds) std::memset(state.memory + from, 0, (to - from) * kElement);
  }
  for (const Part& part : chunk.parts) {
    const std::uint64_t begin = std::max(part.begin, chunk.begin + from);
    const std::uint64_t end = std::min(part.end, chunk.begin + to);
    if (begin < end) step_elements(chunk, part, begin, end);
  }
}

}  // namespace taco::zerocache
