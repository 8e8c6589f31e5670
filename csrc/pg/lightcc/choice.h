// Chooses the way by which each bucket of a step's gradients should travel, so that the computation
// waits as short as possible for the network, and no gradient is compressed for nothing. Pure
// functions: no torch, no clock; the same on all ranks for the same model. Any thread.
//
// The model of a step: buckets become ready one after the other while the backward pass goes on.
// From then on a bucket has work for processors and for the cable between hosts (pg/cost.h). Those
// on the way at the same time share both, as the executor runs them side by side; whoever was ready
// first has been served first when it is over.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "pg/cost.h"

namespace taco::pg::lightcc {

// The ways, from the one that loses nothing to the one that delays most.
enum class Way : std::uint8_t { kExact, kHalf, kTopK };
inline constexpr std::size_t kWays = 3;
using Ways = std::vector<Way>;  // of buckets, in the order in which they become ready

struct ReadyBucket {
  std::uint64_t bytes = 0;
  double ready = 0;  // seconds after the step's start, on the rank that is last
  // By Way; nothing: it must not be sent so. kExact is always there.
  std::array<std::optional<Cost>, kWays> costs;

  const Cost& cost(Way way) const { return *costs[static_cast<std::size_t>(way)]; }
  bool allows(Way way) const { return costs[static_cast<std::size_t>(way)].has_value(); }
};

struct StepModel {
  double compute = 0;  // seconds of the step without communication
  std::vector<ReadyBucket> buckets;
};

// When each bucket has been averaged, in seconds after the step's start.
std::vector<double> ends(const StepModel& step, const Ways& ways);
double seconds(const StepModel& step, const Ways& ways);  // of the whole step
double exposed(const StepModel& step, const Ways& ways);  // what the computation does not hide

// All buckets by one way; those that must not be, exact.
Ways all_by(const StepModel& step, Way way);

// The loss of a choice: bytes sent by kTopK first, then those sent by kHalf.
std::array<std::uint64_t, 2> loss(const StepModel& step, const Ways& ways);

struct ChoiceRules {
  // A step may be so much slower than the fastest, as a share, if less is given up.
  double tolerance = 0.01;
  // How much faster another choice must be for a change.
  double hysteresis = 0.02;
};

// The choice that gives up least among those that are nearly as fast as the fastest. Where more
// combinations could be part of it than are kept at a time, those that differ by next to nothing
// count as one.
Ways choose(const StepModel& step, double tolerance);

// The same for buckets that travel by `now` already: another choice only if it is faster by more
// than the hysteresis, or gives up less and is within half the tolerance, so that noise in what is
// measured changes nothing back and forth.
Ways reconsider(const StepModel& step, const Ways& now, const ChoiceRules& rules);

}  // namespace taco::pg::lightcc
