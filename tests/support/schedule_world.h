// Whole worlds for tests of schedules: host layouts, problems as every rank sees them, and the
// schedules of all ranks.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "pg/planning/algorithm.h"
#include "pg/planning/schedule.h"
#include "pg/planning/topology.h"

namespace taco::pg::testing {

// Ranks thrown on hosts at random: uneven hosts, ranks of a host not consecutive.
Topology scattered_topology(int world, int hosts, std::mt19937_64& random);
std::string describe(const Topology& topology);

// The traits that vary between problems of one kind, drawn at random.
struct ProblemTraits {
  std::uint64_t elements = 0;  // of the message, or of the longest block
  bool uneven = false;         // blocks differ, some are empty
  bool average = false;
  bool premultiply = false;
  int root = 0;
};

// The same collective as each rank states it; `in_place` differs from rank to rank.
std::vector<Problem> problems_of(Kind kind, int world, std::uint32_t element_bytes,
                                 const ProblemTraits& traits, std::mt19937_64& random);
std::string describe(const Problem& problem);

std::vector<Schedule> schedules_of(const Algorithm& algorithm, const std::vector<Problem>& problems,
                                   const Topology& topology, std::uint64_t chunk);

}  // namespace taco::pg::testing
