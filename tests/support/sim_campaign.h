// One seeded scenario of the protocol campaign: a few simulated processes exchange messages of
// random sizes, in random order, under the faults that the seed chooses, and everything that must
// hold is checked. Test support.
#pragma once

#include <cstdint>
#include <string>

#include "support/sim_network.h"

namespace taco::harp {

struct ScenarioResult {
  std::string failure;  // empty: everything held
  SimCounts faults;
  std::uint64_t stalls = 0;
  std::uint64_t link_deaths = 0;
  std::uint64_t mtu_changes = 0;
  std::uint64_t cancels = 0;
  std::uint64_t retransmits = 0, probes = 0, checksum_failures = 0, duplicates = 0;
  std::uint64_t paths_left = 0, paths_proved = 0;
  std::uint64_t forged = 0, early = 0;  // sealed packets that were damaged, or came too soon
  std::uint64_t sealed_none = 0, sealed_auth = 0, sealed_all = 0;  // scenarios by level
  std::uint64_t key_rotations = 0;
  std::uint64_t messages = 0;
  std::size_t most_unmatched_bytes = 0;
};

ScenarioResult run_scenario(std::uint64_t seed);

}  // namespace taco::harp
