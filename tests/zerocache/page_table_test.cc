#include "zerocache/page_table.h"

#include <gtest/gtest.h>

namespace taco::zerocache {
namespace {

void write_back(PageTable& table, PageId page, Slot slot, std::uint64_t checksum = 1) {
  table.begin_write(page, slot);
  table.end_write(page, true, checksum);
}

void fetch(PageTable& table, PageId page) {
  table.begin_read(page);
  table.end_read(page);
  table.set_in_memory(page, Tier::kHost);
}

TEST(PageTable, BeginsWithEverythingInMemoryAndNothingOnDisk) {
  PageTable table(3);
  EXPECT_EQ(table.size(), 3u);
  EXPECT_EQ(table[2].tier, Tier::kHost);
  EXPECT_FALSE(table[2].clean);
  EXPECT_EQ(table[2].generation, 0u);
  EXPECT_EQ(table.spare_slot(), kNoPage);
}

TEST(PageTable, AFetchedPageKeepsItsSlotAndCanBeDroppedAgainForNothing) {
  PageTable table(1);
  write_back(table, 0, {0, 7}, 42);
  table.drop(0);
  EXPECT_EQ(table[0].tier, Tier::kDisk);
  fetch(table, 0);
  EXPECT_EQ(table[0].tier, Tier::kHost);
  EXPECT_TRUE(table[0].clean);
  EXPECT_EQ(table[0].slot, (Slot{0, 7}));
  EXPECT_EQ(table[0].written.checksum, 42u);
  table.drop(0);
  EXPECT_EQ(table[0].generation, 1u) << "nothing was written";
}

TEST(PageTable, EveryWriteBackTakesTheNextGenerationAlsoAFailedOne) {
  PageTable table(1);
  write_back(table, 0, {0, 0}, 11);
  table.set_dirty(0);
  EXPECT_EQ(table.begin_write(0, {0, 0}), 2u);
  table.end_write(0, false, 12);
  EXPECT_FALSE(table[0].clean);
  EXPECT_EQ(table[0].written.generation, 1u);
  EXPECT_EQ(table.begin_write(0, {0, 0}), 3u);
  table.end_write(0, true, 13);
  EXPECT_EQ(table[0].written.generation, 3u);
  EXPECT_EQ(table[0].written.checksum, 13u);
  EXPECT_EQ(table[0].former.generation, 1u);
  EXPECT_EQ(table[0].former.checksum, 11u);
}

TEST(PageTable, SlotsWithoutWorthAreTakenBackFirstThenTheLongestKept) {
  PageTable table(4);
  for (PageId page = 0; page < 4; ++page) write_back(table, page, {0, page});
  table.drop(3);  // lives in its slot: never to be taken
  EXPECT_EQ(table.spare_slot(), 0u);
  table.set_dirty(2);
  EXPECT_EQ(table.spare_slot(), 2u);
  EXPECT_EQ(table.take_slot(2), (Slot{0, 2}));
  EXPECT_EQ(table.spare_slot(), 0u);
  table.drop(0);
  fetch(table, 0);  // has been kept for less long than page 1 now
  EXPECT_EQ(table.spare_slot(), 1u);
  EXPECT_EQ(table.take_slot(1), (Slot{0, 1}));
  EXPECT_FALSE(table[1].clean) << "its bytes are in memory alone";
  EXPECT_EQ(table.take_slot(table.spare_slot()), (Slot{0, 0}));
  EXPECT_EQ(table.spare_slot(), kNoPage);
}

TEST(PageTable, ASlotThatIsBeingReadOrWrittenIsNotTaken) {
  PageTable table(2);
  table.begin_write(0, {0, 0});
  EXPECT_EQ(table.spare_slot(), kNoPage);
  table.end_write(0, true, 1);
  EXPECT_EQ(table.spare_slot(), 0u);
  table.begin_read(0);
  EXPECT_EQ(table.spare_slot(), kNoPage);
  table.end_read(0);
  EXPECT_EQ(table.spare_slot(), 0u);
}

TEST(PageTable, MovingBetweenTiersOfMemoryKeepsTheSlotAndItsTurn) {
  PageTable table(2);
  write_back(table, 0, {0, 0});
  write_back(table, 1, {0, 1});
  table.set_in_memory(0, Tier::kDevice);
  EXPECT_EQ(table[0].tier, Tier::kDevice);
  EXPECT_EQ(table.spare_slot(), 0u);
}

}  // namespace
}  // namespace taco::zerocache
