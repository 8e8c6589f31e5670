// Slots: who has which number, and who makes room.
#include "pg/controller/response_cache.h"

#include <gtest/gtest.h>

#include "support/negotiating_ranks.h"

namespace taco::pg::controller {
namespace {

Request named(const std::string& name) { return make_request(Kind::kAllReduce, name, {{1}}); }

TEST(ResponseCache, TheSlotThatRanLongestAgoMakesRoom) {
  ResponseCache cache(2, 3);
  std::optional<Pending> displaced;
  ResponseCache::Slot* const a = cache.insert(named("a"), {}, displaced);
  cache.insert(named("b"), {}, displaced);
  cache.wait_in(*a, named("a"), 1, 0);
  EXPECT_EQ(cache.waiting(), 1u);
  cache.run(*a);
  EXPECT_EQ(cache.waiting(), 0u);
  EXPECT_FALSE(displaced.has_value());
  cache.wait_in(*cache.find("b"), named("b"), 2, 1);
  EXPECT_EQ(cache.waiting_row(), ResponseCache::Row{1u << (3 + 1)});
  EXPECT_EQ(cache.insert(named("c"), {}, displaced)->number, 1u);
  ASSERT_TRUE(displaced.has_value());
  EXPECT_EQ(displaced->request.name, "b");
  EXPECT_EQ(cache.find("b"), nullptr);
  EXPECT_EQ(cache.waiting(), 0u);
  EXPECT_EQ(cache.waiting_row(), ResponseCache::Row{0});
  EXPECT_EQ(cache.used_row(), ResponseCache::Row{3u << 3});
}

TEST(ResponseCache, WithoutSlotsItKeepsNothing) {
  ResponseCache cache(0, 3);
  std::optional<Pending> displaced;
  EXPECT_EQ(cache.insert(named("a"), {}, displaced), nullptr);
  EXPECT_EQ(cache.find("a"), nullptr);
  EXPECT_FALSE(cache.is_used(0));
  EXPECT_EQ(cache.used_row().size(), 1u);
}

TEST(ResponseCache, ARowGrowsWithItsSlots) {
  ResponseCache cache(200, 3);
  std::optional<Pending> displaced;
  for (int i = 0; i < 61; ++i) cache.insert(named(std::to_string(i)), {}, displaced);
  EXPECT_EQ(cache.used_row().size(), 1u);
  cache.insert(named("next"), {}, displaced);
  EXPECT_EQ(cache.used_row(), (ResponseCache::Row{~std::uint64_t{0} << 3, 1}));
  cache.erase(*cache.find("next"));
  EXPECT_EQ(cache.used_row(), (ResponseCache::Row{~std::uint64_t{0} << 3, 0}));
}

TEST(ResponseCache, ADigestTellsHistoriesApart) {
  std::vector<std::uint64_t> digests;
  for (int turn = 0; turn < 4; ++turn) {
    ResponseCache cache(4, 3);
    std::optional<Pending> displaced;
    cache.insert(named(turn == 1 ? "b" : "a"), {}, displaced);
    cache.insert(named("c"), {}, displaced);
    if (turn == 2) cache.run(cache.slot(0));
    if (turn == 3) cache.erase(cache.slot(0));
    digests.push_back(cache.digest());
  }
  for (std::size_t i = 0; i < digests.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) EXPECT_NE(digests[i], digests[j]);
  }
}

}  // namespace
}  // namespace taco::pg::controller
