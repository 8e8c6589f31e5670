// One seeded scenario of the protocol campaign: a few simulated processes exchange messages of
// random sizes, in random order, under the faults that the seed draws, and everything that must
// hold is checked. Test support.
#pragma once

#include <cstdint>
#include <string>

#include "support/campaign_plan.h"
#include "support/sim_network.h"

namespace taco::harp {

struct ScenarioResult {
  std::string failure;  // empty: everything held
  SimCounts network;
  FaultCounts drawn, fired;  // in how many scenarios; how often
  std::uint64_t retransmits = 0, probes = 0, checksum_failures = 0, duplicates = 0;
  std::uint64_t paths_left = 0, paths_proved = 0, paths_moved = 0, peers_lost = 0;
  std::uint64_t messages = 0, calm_ends = 0;
  std::uint64_t forged = 0, early = 0;  // sealed packets that were damaged, or came too soon
  std::uint64_t sealed_in_part = 0;     // refused by a Nic after a part had left
  std::uint64_t key_rotations = 0;
  std::uint64_t sealed_none = 0, sealed_auth = 0, sealed_all = 0;  // scenarios by level
  // The most of all.
  std::size_t session_bytes = 0, idle_session_bytes = 0;
  std::uint64_t silent_steps = 0;

  void add(const ScenarioResult& other);
};

// `trace`: a file for all packets (sim_pcap.h); empty: none.
ScenarioResult run_scenario(std::uint64_t seed, const std::string& trace = "");

}  // namespace taco::harp
