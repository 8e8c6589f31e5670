// What an algorithm is, and the list of all of them. Each lives in one file of this folder: when
// it fits a problem, what it costs, and the pure function that writes one rank's steps.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "base/status.h"
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
  Work (*work)(const Problem& problem, const Topology& topology);
};

// For algorithms without conditions.
inline const char* always_fit(const Problem&, const Topology&) { return nullptr; }

// The longest of all ranks' blocks, by which all ranks alike reckon what an algorithm costs.
inline std::uint64_t longest_block(const Problem& problem) {
  if (problem.blocks.empty()) return problem.bytes;
  return *std::max_element(problem.blocks.begin(), problem.blocks.end());
}

// All of them, in order of preference where predictions are equal.
std::span<const Algorithm* const> all_algorithms();

// One rank's schedule by `algorithm`, which must fit, in steps of at most about `chunk` bytes.
Schedule build_schedule(const Algorithm& algorithm, const Problem& problem,
                        const Topology& topology, std::uint64_t chunk, int rank);

}  // namespace taco::pg
