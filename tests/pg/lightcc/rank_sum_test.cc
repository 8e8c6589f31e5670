// The order of a few measurements says whether they are of the same thing, and how surely.
#include "pg/lightcc/rank_sum.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <vector>

namespace taco::pg::lightcc {
namespace {

std::vector<double> from(double first, std::size_t count) {
  std::vector<double> values(count);
  std::iota(values.begin(), values.end(), first);
  return values;
}

TEST(RankSum, lists_that_do_not_overlap_are_as_rare_as_their_order) {
  // Both orders of one of 10 over 4.
  EXPECT_NEAR(chance_of(from(0, 4), from(100, 6)), 2.0 / 210, 1e-6);
  EXPECT_NEAR(chance_of(from(100, 6), from(0, 4)), 2.0 / 210, 1e-6);
  EXPECT_TRUE(is_no_chance(from(100, 6), from(0, 58)));
  EXPECT_FALSE(is_no_chance(from(100, 6), from(0, 6))) << "one of 462 is";
}

TEST(RankSum, what_is_alike_is_chance) {
  EXPECT_EQ(chance_of(std::vector<double>(6, 1.0), std::vector<double>(58, 1.0)), 1);
  EXPECT_EQ(chance_of(from(0, 24), from(0, 24)), 1);
  EXPECT_EQ(chance_of({}, from(0, 3)), 1);
}

TEST(RankSum, an_outlier_is_no_other_thing) {
  std::vector<double> newest = from(0.5, 6);
  newest.front() = 1e9;
  EXPECT_FALSE(is_no_chance(newest, from(0, 40)));
}

// In random order, the bound is undercut no more often than it says.
TEST(RankSum, the_bound_holds) {
  for (const std::size_t count : {3, 6, 12, 24}) {
    int below = 0;
    constexpr int kDrawn = 2000;
    for (unsigned seed = 1; seed <= kDrawn; ++seed) {
      std::mt19937_64 random(seed);
      std::lognormal_distribution<double> any(0, 1);
      std::vector<double> some(count), others(40);
      for (double& value : some) value = any(random);
      for (double& value : others) value = any(random);
      below += chance_of(some, others) < 0.02 ? 1 : 0;
    }
    EXPECT_LE(below, kDrawn * 0.02) << count;
  }
}

TEST(RankSum, a_difference_among_much_chance_shows_in_enough_measurements) {
  std::mt19937_64 random(1);
  std::uniform_real_distribution<double> varied(0.6, 1.4);
  std::vector<double> before(40), newest(24);
  for (double& value : before) value = varied(random);
  for (double& value : newest) value = 2 * varied(random);
  EXPECT_TRUE(is_no_chance(newest, before));
}

}  // namespace
}  // namespace taco::pg::lightcc
