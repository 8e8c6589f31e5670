// The planner: for one collective, which algorithm is fastest by the cost model, and this rank's
// Schedule for it. One per group, used on the engine that runs the group's operations; not
// thread-safe. Every rank decides alone and all decide the same, because the decision rests on
// nothing but the Problem's common part, the topology and the parameter block.
#pragma once

#include <list>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "pg/planning/algorithm.h"
#include "pg/planning/cost_model.h"
#include "pg/planning/schedule.h"
#include "pg/planning/topology.h"

namespace taco::pg {

// One algorithm that fits a problem, and what it should cost.
struct Prediction : Cost {
  const Algorithm* algorithm = nullptr;
};

// The average of so many bytes of float32 in place, as gradients are averaged, coded by `codec`;
// null: exact.
Problem average_problem(std::uint64_t bytes, std::shared_ptr<const Codec> codec);

// The user's settings for the exact two-dimensional all_reduce: LIGHT_2D_ALLREDUCE, and up to how
// many bytes (LIGHT_HIERARCHICAL_THRESHOLD). The same on all ranks. Algorithms that code what they
// send are no concern of it.
struct TwoDimensionalChoice {
  enum class Use : std::uint8_t { kIfFastest, kWhereItFits, kNever };
  Use use = Use::kIfFastest;
  std::uint64_t max_bytes = UINT64_MAX;
};

class Planner {
 public:
  // `forced` as in pg/algorithms/forced.h. A name no kind knows is kInvalidArgument here; a name
  // that does not fit a problem is an error of plan() that lists those that do, except that a bare
  // name leaves kinds that have no algorithm of that name to the planner. What may be coded is,
  // where an algorithm for it fits, whatever other algorithm is forced.
  static Result<std::unique_ptr<Planner>> create(Algorithms algorithms, Topology topology,
                                                 CostParameters parameters, int rank,
                                                 const std::string& forced,
                                                 const TwoDimensionalChoice& choice = {});

  // Kinds kSend, kRecv, kRecvAny have no schedule: kInvalidArgument. The schedule stays valid for
  // as long as somebody holds it, beyond the planner too.
  Result<std::shared_ptr<const Schedule>> plan(const Problem& problem);

  // Every algorithm that fits and may be chosen, fastest first.
  std::vector<Prediction> predictions(const Problem& problem) const;
  // The algorithm that plan() would take; if one is forced and does not fit, the one that it would
  // take otherwise.
  Prediction prediction(const Problem& problem) const;

  // Does all_to_all of equal blocks run an algorithm here that needs every rank to know that they
  // are equal? Otherwise ranks with split lists and ranks without may take part together. Any
  // thread.
  bool relies_on_equal_splits(std::uint64_t block_bytes) const;

  const Topology& topology() const { return topology_; }
  const CostParameters& parameters() const { return parameters_; }
  int rank() const { return rank_; }
  std::size_t cached() const { return recent_.size(); }

 private:
  struct Forced {
    Kind kind;
    std::string algorithm;
  };
  struct Entry {
    Problem problem;
    std::shared_ptr<const Schedule> schedule;
  };
  struct Hash {
    std::size_t operator()(const Problem* problem) const { return hash_of(*problem); }
  };
  struct Equal {
    bool operator()(const Problem* a, const Problem* b) const { return *a == *b; }
  };

  Planner(Algorithms algorithms, Topology topology, CostParameters parameters, int rank,
          const TwoDimensionalChoice& choice);
  Status parse_forced(const std::string& forced);
  Status parse_item(const std::string& forced, const std::string& item);
  bool needs_equal_splits(const Algorithm& algorithm, const Problem& problem) const;
  std::vector<const Algorithm*> candidates(const Problem& problem) const;
  const Algorithm* forced_for(const Problem& problem) const;  // null: none
  Result<const Algorithm*> choose(const Problem& problem) const;
  Result<std::shared_ptr<const Schedule>> make(const Problem& problem) const;
  void evict();

  const Algorithms algorithms_;
  Topology topology_;
  CostParameters parameters_;
  int rank_;
  const TwoDimensionalChoice choice_;
  std::string forced_everywhere_;  // a bare name, or empty
  std::vector<Forced> forced_;
  bool equal_splits_matter_ = false;  // some all_to_all algorithm for this topology needs them

  // Least recently used last. The map's keys point into the list.
  std::list<Entry> recent_;
  std::unordered_map<const Problem*, std::list<Entry>::iterator, Hash, Equal> index_;
  std::size_t cached_steps_ = 0;
};

}  // namespace taco::pg
