#include "zerocache/schedule/plan.h"

#include <algorithm>
#include <string>
#include <utility>

#include "zerocache/schedule/min_moves.h"
#include "zerocache/schedule/open_uses.h"
#include "zerocache/schedule/scheduler.h"

namespace taco::zerocache {
namespace {

constexpr int kWarmUp = 2;  // steps: the order is learned, then what the first left is gone
constexpr int kMeasured = 3;

constexpr std::size_t kWordBytes = kStateElementBytes;

// Begins and ends a use at once.
void add(std::vector<UseEvent>& events, OperatorKey key, std::vector<Access> accesses,
         Duration compute) {
  events.push_back({true, key, std::move(accesses), compute});
  events.push_back({false, key, {}, 0});
}

class Planner {
 public:
  Planner(const PlannedModel& model, Layout layout, StateLayout state)
      : model_(model), layout_(std::move(layout)), state_(std::move(state)) {}

  Program program() {
    Program program;
    program.setup = operators_of(place());
    program.first = operators_of(step(true));
    program.later = operators_of(step(false));
    program.pages = layout_.pages();
    return program;
  }

 private:
  // A page that has several tensors holds something from the first on.
  std::vector<UseEvent> place() const {
    std::vector<UseEvent> events;
    std::vector<bool> held(layout_.pages(), false);
    for (std::uint32_t index = 0; index < model_.tensors.size(); ++index) {
      const Run run = layout_.pages_of(layout_.tensors()[index]);
      std::vector<Access> accesses;
      for (PageId page = run.first; page < run.first + run.count; ++page) {
        accesses.push_back({page, Tier::kDevice, held[page], true});
        held[page] = true;
      }
      if (!accesses.empty()) add(events, kPlaceKeys + index, std::move(accesses), 0);
    }
    return events;
  }

  std::vector<Access> accesses_of(const PlannedModule& module) const {
    std::vector<PageId> pages;
    for (const std::uint32_t index : module.tensors) {
      const Run run = layout_.pages_of(layout_.tensors()[index]);
      for (PageId page = run.first; page < run.first + run.count; ++page) pages.push_back(page);
    }
    std::sort(pages.begin(), pages.end());
    pages.erase(std::unique(pages.begin(), pages.end()), pages.end());
    std::vector<Access> accesses;
    accesses.reserve(pages.size());
    for (const PageId page : pages) accesses.push_back({page});
    return accesses;
  }

  std::vector<UseEvent> step(bool first) const {
    std::vector<UseEvent> events;
    for (std::size_t i = 0; i < model_.modules.size(); ++i) {
      add(events, 2 * i, accesses_of(model_.modules[i]), model_.modules[i].forward);
    }
    for (std::size_t i = model_.modules.size(); i-- > 0;) {
      const Duration backward = model_.modules[i].backward;
      if (backward > 0) add(events, 2 * i + 1, accesses_of(model_.modules[i]), backward);
    }
    for (PageId page = 0; page < layout_.pages(); ++page) {
      if (state_.covers(page)) add_chunks(events, page, first);
    }
    return events;
  }

  void add_chunks(std::vector<UseEvent>& events, PageId page, bool first) const {
    const auto on_page = layout_.tensors_on(page);
    if (on_page.empty()) return;
    const std::uint32_t element = layout_.tensors()[on_page.front()].element_bytes;
    const std::uint32_t parts = StateLayout::parts_of(element);
    for (std::uint32_t part = 0; part < parts; ++part) {
      std::vector<Access> accesses = {access_in(std::nullopt, page, true, true)};
      for (const StateKind kind : state_.kinds()) {
        const PageId state = state_.page_of(page, part, kind);
        if (state != kNoPage) accesses.push_back({state, Tier::kHost, !first, true});
      }
      // The optimizer's traffic for an element: parameter and state are read and written, the
      // gradient, as large as the parameter, is read.
      const auto states = static_cast<double>(accesses.size() - 1);
      const double elements = static_cast<double>(layout_.page_bytes()) / kWordBytes;
      const double bytes = elements * (3 * element + 2 * kWordBytes * states);
      const auto compute = static_cast<Duration>(bytes / model_.step_bytes_per_second * 1e9);
      add(events, kChunkKeys + 2 * std::uint64_t{page} + part, std::move(accesses), compute);
    }
  }

  const PlannedModel& model_;
  const Layout layout_;
  const StateLayout state_;
};

// Before anything has run: memory first, but for what has to pass through it.
void place(const std::vector<PageId>& contents, const Capacities& room, Simulator& simulator) {
  const std::uint32_t passing = std::min(room.host, 2u);
  std::pair<Tier, std::uint32_t> places[] = {{Tier::kHost, room.host - passing},
                                             {Tier::kDisk, room.disk},
                                             {Tier::kDevice, room.device},
                                             {Tier::kHost, passing}};
  auto* at = std::begin(places);
  for (const PageId page : contents) {
    while (at->second == 0) ++at;  // check_fits() has found room for all
    simulator.place(page, at->first);
    --at->second;
  }
}

}  // namespace

std::size_t Program::held() const {
  std::vector<bool> held(pages, false);
  for (const PageId page : contents) held[page] = true;
  for (const std::vector<Use>* uses : {&setup, &first, &later}) {
    for (const Use& use : *uses) {
      for (const Access& access : use.accesses) held[access.page] = true;
    }
  }
  return static_cast<std::size_t>(std::count(held.begin(), held.end(), true));
}

std::size_t Program::needed_at_once(Tier tier) const {
  std::size_t most = 0;
  for (const std::vector<Use>* uses : {&setup, &first, &later}) {
    for (const Use& use : *uses) {
      // A page that may be anywhere is on the device where host memory is full.
      const auto here =
          std::count_if(use.accesses.begin(), use.accesses.end(), [&](const Access& access) {
            return (access.anywhere ? Tier::kDevice : access.tier) == tier;
          });
      most = std::max(most, static_cast<std::size_t>(here));
    }
  }
  return most;
}

Status check_fits(const Program& program, const Capacities& capacities, std::size_t page_bytes) {
  return check_capacities(capacities, page_bytes, program.held(),
                          program.needed_at_once(Tier::kDevice),
                          program.needed_at_once(Tier::kHost));
}

Result<Prediction> predict(const Program& program, const Capacities& capacities, const Costs& costs,
                           DiskWays disk) {
  TACO_RETURN_IF_ERROR(check_fits(program, capacities, costs.page_bytes));
  Simulator simulator(capacities, costs, program.pages, disk);
  place(program.contents, capacities, simulator);
  if (!program.setup.empty()) simulator.run("place", program.setup);
  simulator.run("train", program.first);
  simulator.runs(kWarmUp - 1, "train", program.later);
  const SimulatedRun steps = simulator.runs(kMeasured, "train", program.later);
  if (!simulator.faults().empty()) {
    return Status(Code::kInternal, "the simulated step failed: " + simulator.faults().front());
  }
  Prediction prediction;
  prediction.time = steps.time / kMeasured;
  prediction.compute = steps.compute / kMeasured;
  const MinMoves least = min_moves(program.later, capacities);
  for (int way = 0; way < kWays; ++way) {
    prediction.copies[way] = static_cast<double>(steps.copies[way]) / kMeasured;
    prediction.least[way] = least.copies[way];
  }
  prediction.hits = static_cast<double>(steps.hits) / kMeasured;
  prediction.misses = static_cast<double>(steps.misses) / kMeasured;
  return prediction;
}

Program program_of(const RunRecord& run) {
  Program program;
  program.first = program.later = run.uses();
  program.pages = static_cast<std::uint32_t>(run.before.size());
  // A page that is read before it is written has held something, too.
  std::vector<std::uint8_t> held = run.before;
  std::vector<bool> seen(held.size(), false);
  for (const Access& access : run.accesses) {
    if (!seen[access.page] && access.reads) held[access.page] = 1;
    seen[access.page] = true;
  }
  for (PageId page = 0; page < program.pages; ++page) {
    if (held[page] != 0) program.contents.push_back(page);
  }
  return program;
}

Result<Program> program_of(const PlannedModel& model, std::size_t page_bytes) {
  auto layout = Layout::make(model.tensors, page_bytes);
  if (!layout.ok()) return layout.status();
  std::vector<std::uint32_t> trained(model.tensors.size());
  for (std::uint32_t i = 0; i < trained.size(); ++i) trained[i] = i;
  auto state = StateLayout::append_to(*layout, trained, model.kinds);
  if (!state.ok()) return state.status();
  return Planner(model, std::move(*layout), std::move(*state)).program();
}

}  // namespace taco::zerocache
