// Ranks that run the schedules they are given over the loopback network: the executor without a
// group around it. A rank whose execution breaks fails alone; whoever waits for it waits for ever.
#pragma once

#include <memory>
#include <vector>

#include "pg/operation.h"
#include "pg/planning/schedule.h"
#include "support/loopback_stack.h"

namespace taco::testing {

struct RankResult {
  Status status;
  std::uint64_t bytes_received = 0;
};

class ScheduleRanks {
 public:
  explicit ScheduleRanks(const LoopbackOptions& options) : network_(options), options_(options) {}

  // Each rank runs its schedule on its spec. Returns, by rank, when nothing is open any more.
  std::vector<RankResult> run(const std::vector<pg::Schedule>& schedules,
                              const std::vector<pg::OperationSpec>& specs);

 private:
  LoopbackNetwork network_;
  const LoopbackOptions options_;
  std::uint64_t sequence_ = 0;
};

}  // namespace taco::testing
