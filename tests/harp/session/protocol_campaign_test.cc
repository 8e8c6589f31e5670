// The protocol under seeded faults. TACO_SIM_SEEDS sets how many seeds (default 500; `make test`
// runs 10,000), TACO_SIM_FIRST_SEED where to begin: a failing seed is printed and runs alone with
// TACO_SIM_FIRST_SEED=<seed> TACO_SIM_SEEDS=1.
#include <gtest/gtest.h>

#include <cstdio>

#include "support/number_from.h"
#include "support/sim_campaign.h"

namespace taco::harp {
namespace {

struct Row {
  const char* name;
  std::uint64_t count;
};

TEST(ProtocolCampaign, EverySeedDeliversExactlyOnceWhateverTheNetworkDoes) {
  const std::uint64_t first = number_from("TACO_SIM_FIRST_SEED", 1);
  const std::uint64_t seeds = number_from("TACO_SIM_SEEDS", 500);
  SimCounts faults;
  ScenarioResult sum;
  for (std::uint64_t seed = first; seed < first + seeds; ++seed) {
    const ScenarioResult result = run_scenario(seed);
    ASSERT_EQ(result.failure, "") << "seed " << seed;
    faults.add(result.faults);
    sum.stalls += result.stalls;
    sum.link_deaths += result.link_deaths;
    sum.mtu_changes += result.mtu_changes;
    sum.cancels += result.cancels;
    sum.retransmits += result.retransmits;
    sum.probes += result.probes;
    sum.paths_left += result.paths_left;
    sum.paths_proved += result.paths_proved;
    sum.forged += result.forged;
    sum.early += result.early;
    sum.key_rotations += result.key_rotations;
    sum.sealed_none += result.sealed_none;
    sum.sealed_auth += result.sealed_auth;
    sum.sealed_all += result.sealed_all;
    sum.messages += result.messages;
  }
  const Row rows[] = {
      {"lost", faults.lost},
      {"duplicated", faults.duplicated},
      {"reordered", faults.reordered},
      {"corrupted", faults.corrupted},
      {"swallowed by dead links", faults.link_dead},
      {"refused by a full nic", faults.refused},
      {"dropped by a full switch", faults.port_full},
      {"too large for their link", faults.too_large},
      {"link deaths", sum.link_deaths},
      {"changes of a link's MTU", sum.mtu_changes},
      {"engine stalls", sum.stalls},
      {"cancelled exchanges", sum.cancels},
      {"probes", sum.probes},
      {"further paths proved", sum.paths_proved},
      {"silent paths left", sum.paths_left},
      {"retransmitted", sum.retransmits},
      {"damaged sealed packets", sum.forged},
      {"too early for their keys", sum.early},
      {"keys changed", sum.key_rotations},
      {"runs with none sealed", sum.sealed_none},
      {"runs with some sealed", sum.sealed_auth},
      {"runs with all sealed", sum.sealed_all},
  };
  std::printf("%llu seeds, %llu messages, %llu packets delivered\n",
              static_cast<unsigned long long>(seeds), static_cast<unsigned long long>(sum.messages),
              static_cast<unsigned long long>(faults.delivered));
  for (const Row& row : rows) {
    std::printf("  %-26s%llu\n", row.name, static_cast<unsigned long long>(row.count));
    if (seeds >= 10'000) {
      EXPECT_GE(row.count, 1000u) << row.name;
    }
  }
}

}  // namespace
}  // namespace taco::harp
