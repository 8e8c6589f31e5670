// Many seeds of the protocol campaign, one after another or on several threads, and what they have
// drawn, set going and found. Test support.
#pragma once

#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "support/sim_campaign.h"

namespace taco::harp {

struct CampaignRun {
  std::uint64_t first = 1, seeds = 1;
  unsigned threads = 1;
  std::size_t max_failures = 10;  // then it ends
  // Now and then, from any thread, one at a time: so many seeds are done.
  std::function<void(std::uint64_t done)> progress;
};

struct CampaignOutcome {
  struct Failure {
    std::uint64_t seed = 0;
    std::string text;
  };
  std::uint64_t seeds = 0;        // run
  std::vector<Failure> failures;  // by seed
  ScenarioResult sum;
};

CampaignOutcome run_campaign(const CampaignRun& run);
// Which fault was drawn by how many seeds and fired how often, and what else is worth knowing.
void print_report(std::FILE* file, const CampaignOutcome& outcome);
// Faults that were drawn by fewer seeds, or fired less often; for campaigns that are long enough.
std::string rare_faults(const CampaignOutcome& outcome, std::uint64_t drawn, std::uint64_t fired);

}  // namespace taco::harp
