// The interface of an algorithm. Each lives in one file of pg/algorithms/: when it fits a problem,
// what it costs, and the pure function that writes one rank's steps.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "pg/planning/cost_model.h"
#include "pg/planning/schedule.h"
#include "pg/planning/schedule_builder.h"
#include "pg/planning/topology.h"

namespace taco::pg {

struct Algorithm {
  Kind kind;
  const char* name;
  // Empty when it fits, else why not, to be read after "because ". Never looks at what only one
  // rank knows.
  const char* (*unfit)(const Problem& problem, const Topology& topology);
  // Writes the steps of builder.rank().
  void (*build)(ScheduleBuilder& builder, const Topology& topology);
  // For the cost model. From what all ranks know only.
  Workload (*work)(const Problem& problem, const Topology& topology);
  // Sends blocks coded by Problem::codec, without which it does not fit. Where there is a codec and
  // such an algorithm fits, the others are out of the question.
  bool coded = false;
  // Exact, and what LIGHT_2D_ALLREDUCE is about.
  bool two_dimensional = false;
};

// Algorithms in order of preference where predictions are equal. They outlive every holder of the
// view.
using Algorithms = std::span<const Algorithm* const>;

// For algorithms without conditions.
inline const char* always_fit(const Problem&, const Topology&) { return nullptr; }

// The longest of all ranks' blocks, by which all ranks alike reckon what an algorithm costs.
inline std::uint64_t longest_block(const Problem& problem) {
  if (problem.blocks.empty()) return problem.bytes;
  return *std::max_element(problem.blocks.begin(), problem.blocks.end());
}

// One rank's schedule by `algorithm`, which must fit, in steps of at most about `chunk` bytes.
inline Schedule build_schedule(const Algorithm& algorithm, const Problem& problem,
                               const Topology& topology, std::uint64_t chunk, int rank) {
  ScheduleBuilder builder(problem, rank, topology.world(), chunk);
  algorithm.build(builder, topology);
  return builder.finish(algorithm.name);
}

}  // namespace taco::pg
