#include "support/schedule_world.h"

#include <algorithm>

namespace taco::pg::testing {

Topology scattered_topology(int world, int hosts, std::mt19937_64& random) {
  std::vector<int> host_of_rank;
  for (int rank = 0; rank < world; ++rank) {
    host_of_rank.push_back(rank < hosts ? rank : static_cast<int>(random() % hosts));
  }
  std::shuffle(host_of_rank.begin(), host_of_rank.end(), random);
  return *Topology::make(std::move(host_of_rank), {});
}

std::string describe(const Topology& topology) {
  std::string text = "world " + std::to_string(topology.world()) + " hosts [";
  for (int rank = 0; rank < topology.world(); ++rank) {
    text += (rank ? " " : "") + std::to_string(topology.host_of(rank));
  }
  return text + "]";
}

namespace {

std::uint64_t random_block(const ProblemTraits& traits, std::uint32_t element,
                           std::mt19937_64& random) {
  if (!traits.uneven) return traits.elements * element;
  return random() % 4 == 0 ? 0 : random() % (traits.elements + 1) * element;
}

// from[a][b]: what rank a has for rank b.
void set_splits(std::vector<Problem>& problems, const ProblemTraits& traits,
                std::mt19937_64& random) {
  for (Problem& sender : problems) {
    for (Problem& receiver : problems) {
      const std::uint64_t bytes = random_block(traits, sender.element_bytes, random);
      sender.send_blocks.push_back(bytes);
      receiver.receive_blocks.push_back(bytes);
    }
  }
}

}  // namespace

std::vector<Problem> problems_of(Kind kind, int world, std::uint32_t element_bytes,
                                 const ProblemTraits& traits, std::mt19937_64& random) {
  Problem common;
  common.kind = kind;
  common.element_bytes = element_bytes;
  common.root = traits.root;
  if (kind == Kind::kAllReduce || kind == Kind::kReduceScatter || kind == Kind::kReduce) {
    common.average = traits.average;
    common.premultiply = traits.premultiply;
  }
  const bool list = kind == Kind::kAllGather || kind == Kind::kReduceScatter;
  if (list && traits.uneven) {
    for (int rank = 0; rank < world; ++rank) {
      common.blocks.push_back(random_block(traits, element_bytes, random));
    }
  } else if (kind != Kind::kBarrier) {
    common.bytes = traits.elements * element_bytes;
  }
  common.equal_splits = kind == Kind::kAllToAll && !traits.uneven;
  std::vector<Problem> problems(world, common);
  if (kind == Kind::kAllToAll && traits.uneven) {
    for (Problem& problem : problems) problem.bytes = 0;
    set_splits(problems, traits, random);
  }
  for (Problem& problem : problems) {
    problem.in_place = kind != Kind::kAllToAll && kind != Kind::kBarrier && random() % 2 == 0;
  }
  return problems;
}

std::string describe(const Problem& problem) {
  return std::string(name_of(problem.kind)) + " " + std::to_string(problem.bytes) + " bytes of " +
         std::to_string(problem.element_bytes) + ", root " + std::to_string(problem.root) +
         (problem.blocks.empty() ? "" : ", uneven") + (problem.average ? ", average" : "") +
         (problem.premultiply ? ", premultiplied" : "") + (problem.in_place ? ", in place" : "");
}

std::vector<Schedule> schedules_of(const Algorithm& algorithm, const std::vector<Problem>& problems,
                                   const Topology& topology, std::uint64_t chunk) {
  std::vector<Schedule> schedules;
  for (int rank = 0; rank < topology.world(); ++rank) {
    schedules.push_back(build_schedule(algorithm, problems[rank], topology, chunk, rank));
  }
  return schedules;
}

}  // namespace taco::pg::testing
