// The protocol under seeded faults. TACO_SIM_SEEDS sets how many seeds (default 500; `make test`
// runs 10,000, `make sim` as many as it is asked to), TACO_SIM_FIRST_SEED where to begin. A failing
// seed is printed, and protocol_campaign runs it alone, with a trace of its packets.
#include <gtest/gtest.h>

#include <cstdio>

#include "support/campaign_run.h"
#include "support/number_from.h"

namespace taco::harp {
namespace {

// As many as keep the cores busy to the end, and each a moment.
constexpr std::uint64_t kShards = 8;

class ProtocolCampaign : public testing::TestWithParam<std::uint64_t> {};

TEST_P(ProtocolCampaign, EverySeedDeliversExactlyOnceWhateverTheNetworkDoes) {
  const std::uint64_t seeds = number_from("TACO_SIM_SEEDS", 500);
  const std::uint64_t begin = seeds * GetParam() / kShards;
  const std::uint64_t end = seeds * (GetParam() + 1) / kShards;
  CampaignRun run;
  run.first = number_from("TACO_SIM_FIRST_SEED", 1) + begin;
  run.seeds = end - begin;
  const CampaignOutcome outcome = run_campaign(run);
  for (const CampaignOutcome::Failure& failure : outcome.failures) {
    ADD_FAILURE() << failure.text << "\n  tests/harp/session/protocol_campaign --first "
                  << failure.seed << " --seeds 1 --pcap " << failure.seed << ".pcapng";
  }
  EXPECT_EQ(outcome.seeds, run.seeds);
  print_report(stdout, outcome);
  // All seeds together have at least 100 of each; chance may give a shard half of its part.
  if (seeds >= 10'000) {
    EXPECT_EQ(rare_faults(outcome, 50 / kShards, 50 / kShards), "");
  }
}

INSTANTIATE_TEST_SUITE_P(Shard, ProtocolCampaign, testing::Range(std::uint64_t{0}, kShards));

TEST(ProtocolCampaignSeeds, TheSameSeedRunsTheSameWay) {
  for (const std::uint64_t seed : {3u, 4u, 5u, 6u}) {
    const ScenarioResult once = run_scenario(seed), again = run_scenario(seed);
    EXPECT_EQ(once.network.sent, again.network.sent);
    EXPECT_EQ(once.network.delivered, again.network.delivered);
    EXPECT_EQ(once.retransmits, again.retransmits);
    EXPECT_GT(once.network.sent, 0u);
  }
}

}  // namespace
}  // namespace taco::harp
