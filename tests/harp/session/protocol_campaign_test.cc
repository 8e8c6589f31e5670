// The protocol under seeded faults. TACO_SIM_SEEDS sets how many seeds (default 500; `make test`
// runs 10,000, `make sim` as many as it is asked to), TACO_SIM_FIRST_SEED where to begin. A failing
// seed is printed, and protocol_campaign runs it alone, with a trace of its packets.
#include <gtest/gtest.h>

#include <cstdio>

#include "support/campaign_run.h"
#include "support/number_from.h"

namespace taco::harp {
namespace {

TEST(ProtocolCampaign, EverySeedDeliversExactlyOnceWhateverTheNetworkDoes) {
  CampaignRun run;
  run.first = number_from("TACO_SIM_FIRST_SEED", 1);
  run.seeds = number_from("TACO_SIM_SEEDS", 500);
  const CampaignOutcome outcome = run_campaign(run);
  for (const CampaignOutcome::Failure& failure : outcome.failures) {
    ADD_FAILURE() << failure.text << "\n  tests/harp/session/protocol_campaign --first "
                  << failure.seed << " --seeds 1 --pcap " << failure.seed << ".pcapng";
  }
  print_report(stdout, outcome);
  if (run.seeds >= 10'000) {
    EXPECT_EQ(rare_faults(outcome, 100, 100), "");
  }
}

TEST(ProtocolCampaign, TheSameSeedRunsTheSameWay) {
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
