#include "zerocache/mover.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "support/mover_rig.h"

namespace taco::zerocache {
namespace {

using testing::MoverRig;
using testing::read_in;
using testing::write_in;

TEST(Mover, PagesAreWhereTheyAreNeededAndHoldWhatWasWritten) {
  MoverRig rig({.pages = 8, .device = 3, .host = 8});
  for (PageId page = 0; page < 8; ++page) rig.fill(page, page + 1);
  for (int round = 0; round < 3; ++round) {
    for (PageId page = 0; page < 8; ++page) {
      const std::vector<Access> use = {read_in(page)};
      ASSERT_TRUE(rig.begin(page, use));
      EXPECT_TRUE(rig.holds(page, Tier::kDevice, page + 1));
      rig.mover->end(page);
    }
  }
  const MoverStats stats = rig.mover->stats();
  EXPECT_LE(stats.tiers[0].resident, 3u);
  EXPECT_EQ(stats.uses, 8u + 24u);
  EXPECT_GT(stats.ways[static_cast<int>(Way::kUpload)].copies, 8u);
}

}  // namespace
}  // namespace taco::zerocache
