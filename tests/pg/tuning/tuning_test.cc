// The measurement itself, over the loopback network: what it costs there is of no interest, that
// all ranks get one block, and that a death ends it, is.
#include "pg/tuning/tuning.h"

#include <gtest/gtest.h>

#include <atomic>

#include "base/heed.h"
#include "pg/tuning/cost_block.h"
#include "pg/tuning/link_probe.h"
#include "support/rank_threads.h"

namespace taco::pg {
namespace {

using testing::on_threads;
using testing::RankThreads;

TEST(Tuning, GivesAllRanksOneBlock) {
  for (const int per_host : {0, 1, 2}) {
    SCOPED_TRACE(per_host);
    RankThreads ranks({.world = 4, .ranks_per_host = per_host});
    std::vector<CostParameters> blocks(4);
    on_threads(4, [&](int rank) {
      Result<CostParameters> block = tune(ranks.network().stack(rank), ranks.group(rank).options());
      ASSERT_TRUE(block.ok()) << block.status().message();
      blocks[rank] = *block;
    });
    const CostParameters table;
    for (const CostParameters& block : blocks) EXPECT_EQ(block.hash(), blocks[0].hash());
    EXPECT_NE(blocks[0].hash(), table.hash());
    EXPECT_EQ(blocks[0].shared.latency == table.shared.latency, per_host == 1);
    EXPECT_EQ(blocks[0].network.latency == table.network.latency, per_host == 0);
    EXPECT_EQ(ranks.network().open_requests(), 0u);
  }
}

TEST(Tuning, MeasuresWhatALinkDoes) {
  RankThreads ranks({.world = 2});
  on_threads(2, [&](int rank) {
    LinkProbe probe(ranks.network().stack(rank)->engine(),
                    ranks.group(rank).options().peers[1 - rank], 77,
                    monotonic_now() + 20 * kSecond);
    if (rank == 1) {
      EXPECT_TRUE(probe.follow().ok());
      return;
    }
    Result<LinkMeasurement> found = probe.lead();
    ASSERT_TRUE(found.ok()) << found.status().message();
    const LinkMeasurement measured = *found;
    EXPECT_GT(measured.round_trip, 0);
    EXPECT_LT(measured.round_trip, 1);
    EXPECT_GT(measured.bytes_per_second, 1e6);
    EXPECT_GT(measured.busy, 0);
  });
}

TEST(Tuning, ADeathEndsItForAll) {
  RankThreads ranks({.world = 3, .ranks_per_host = 1});
  std::atomic<int> failed{0};
  on_threads(3, [&](int rank) {
    if (rank == 1) return ranks.network().kill(1);
    Result<CostParameters> block = tune(ranks.network().stack(rank), ranks.group(rank).options());
    EXPECT_FALSE(block.ok());
    EXPECT_NE(block.status().message().find("TACO_TUNE=1"), std::string::npos);
    ++failed;
  });
  EXPECT_EQ(failed, 2);
}

TEST(Tuning, WhoIsInterruptedTakesBackWhatItHasPosted) {
  RankThreads ranks({.world = 2});
  LinkProbe probe(ranks.network().stack(0)->engine(), ranks.group(0).options().peers[1], 79,
                  monotonic_now() + 3'600 * kSecond);
  const Heed heed([] { return Status(Code::kAborted, "enough"); });
  EXPECT_EQ(probe.lead().status().message(), "enough");
  EXPECT_EQ(ranks.network().open_requests(), 0u);
}

TEST(Tuning, AFollowerThatNeverComesIsGivenUp) {
  RankThreads ranks({.world = 2});
  LinkProbe probe(ranks.network().stack(0)->engine(), ranks.group(0).options().peers[1], 78,
                  monotonic_now() + 100 * kMillisecond);
  EXPECT_EQ(probe.lead().status().code(), Code::kTimeout);
  EXPECT_EQ(ranks.network().open_requests(), 0u);
}

}  // namespace
}  // namespace taco::pg
