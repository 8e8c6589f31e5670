// Predicts what a training step will take: the scheduler itself decides what moves when, and a
// simulation carries that out. The program is one that has run (run_record.h), with these or other
// capacities, or one that exists only as a list of tensors.
//
// Pure: as exact as what it is told of speeds and of computing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "zerocache/pages/layout.h"
#include "zerocache/pages/state_layout.h"
#include "zerocache/schedule/cost.h"
#include "zerocache/schedule/residency.h"
#include "zerocache/schedule/run_record.h"
#include "zerocache/schedule/simulator.h"
#include "zerocache/schedule/trace.h"

namespace taco::zerocache {

struct Program {
  std::vector<Use> setup;        // once: parameters are placed
  std::vector<Use> first;        // the first step, and
  std::vector<Use> later;        // each after it
  std::vector<PageId> contents;  // pages that hold something before all that
  std::uint32_t pages = 0;       // there are the pages 0 to pages - 1

  // Pages that ever hold something; the most that an operator needs at once.
  std::size_t held() const;
  std::size_t needed_at_once(Tier tier) const;
};

struct Prediction {
  Duration time = 0;     // of a step, once their order is known
  Duration compute = 0;  // of that, nothing waited
  double copies[kWays] = {};
  double least[kWays] = {};  // min_moves.h
  double hits = 0, misses = 0;
};

// kInvalidArgument names what has to be larger, and how large.
Status check_fits(const Program& program, const Capacities& capacities, std::size_t page_bytes);
// Fails where check_fits() does.
Result<Prediction> predict(const Program& program, const Capacities& capacities, const Costs& costs,
                           DiskWays disk = DiskWays::kAtOnce);

// The run once more, over and over.
Program program_of(const RunRecord& run);

// The tensors that a module computes with, and how long it takes.
struct PlannedModule {
  std::vector<std::uint32_t> tensors;  // indices
  Duration forward = 0;
  Duration backward = 0;  // 0: it reads no parameter then
};
// A model of which nothing exists. Modules run in their order and back.
struct PlannedModel {
  std::vector<TensorSpec> tensors;  // parameters, in the order in which they are placed
  std::vector<PlannedModule> modules;
  std::vector<StateKind> kinds;
  // The optimizer's, of parameters, gradients and state that it reads and writes.
  double step_bytes_per_second = 40e9;
};
// Fails where Layout or StateLayout does.
Result<Program> program_of(const PlannedModel& model, std::size_t page_bytes);

}  // namespace taco::zerocache
