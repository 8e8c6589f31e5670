#include "harp/engine/placement.h"

#include <gtest/gtest.h>

#include <initializer_list>
#include <thread>
#include <vector>

namespace taco::harp {
namespace {

cpu_set_t cores(std::initializer_list<int> which) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int core : which) CPU_SET(core, &set);
  return set;
}

int better(int own, std::vector<int> others, const cpu_set_t& allowed) {
  return less_crowded_core(own, others, allowed);
}

TEST(PlacementTest, OneOfThreeOnACoreMovesToTheCoreWithOne) {
  EXPECT_EQ(better(0, {0, 0, 1}, cores({0, 1})), 1);
  EXPECT_EQ(better(1, {0, 1, 1}, cores({0, 1})), 0);
}

TEST(PlacementTest, StaysWhereAMoveWouldOnlySwapTheCores) {
  EXPECT_EQ(better(0, {1, 1, 0}, cores({0, 1})), -1);  // two and two
  EXPECT_EQ(better(0, {0, 1}, cores({0, 1})), -1);     // two and one
  EXPECT_EQ(better(0, {1}, cores({0, 1})), -1);
  EXPECT_EQ(better(0, {}, cores({0, 1})), -1);
}

TEST(PlacementTest, GoesOnlyWhereItMayRun) {
  EXPECT_EQ(better(0, {0, 0, 0}, cores({0})), -1);
  EXPECT_EQ(better(0, {0, 0, 0}, cores({0, 3})), 3);
  EXPECT_EQ(better(5, {5, 5, 2, 2, 3}, cores({2, 3, 5})), 3);
}

TEST(PlacementTest, WhoSleepsIsOnNoCore) {
  EXPECT_EQ(better(0, {-1, -1, 0}, cores({0, 1})), 1);
  EXPECT_EQ(better(0, {-1, -1, -1}, cores({0, 1})), -1);
}

TEST(PlacementTest, TheFewestDriversWinAndAmongEqualsTheNextCore) {
  EXPECT_EQ(better(1, {1, 1, 2, 0}, cores({0, 1, 2, 3, 4})), 3);
  EXPECT_EQ(better(4, {4, 4, 4}, cores({0, 1, 4})), 0);
}

// On real threads: the body runs in one that may use every core of this process.
class PlacementOfAThreadTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(sched_getaffinity(0, sizeof allowed_, &allowed_), 0);
    if (CPU_COUNT(&allowed_) < 2) GTEST_SKIP() << "one core only";
    for (int core = 0; core < CPU_SETSIZE && second_ < 0; ++core) {
      if (CPU_ISSET(core, &allowed_)) (first_ < 0 ? first_ : second_) = core;
    }
  }
  // As the scheduler may: onto `core`, with every core allowed.
  void put_on(int core) const {
    const cpu_set_t one = cores({core});
    ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
    ASSERT_EQ(sched_setaffinity(0, sizeof allowed_, &allowed_), 0);
  }

  cpu_set_t allowed_;
  int first_ = -1, second_ = -1;
};

TEST_F(PlacementOfAThreadTest, MovesAtOnceAndMayStillRunEverywhere) {
  std::thread([&] {
    Placement placement;
    put_on(first_);
    const std::vector<int> others = {first_, first_, second_};
    const int core = placement.look(0, first_, others);
    EXPECT_NE(core, first_);
    cpu_set_t now;
    ASSERT_EQ(sched_getaffinity(0, sizeof now, &now), 0);
    EXPECT_TRUE(CPU_EQUAL(&now, &allowed_));
  }).join();
}

TEST_F(PlacementOfAThreadTest, AThreadThatItsUserBoundStays) {
  std::thread([&] {
    const cpu_set_t one = cores({first_});
    ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
    Placement placement;
    const std::vector<int> others = {first_, first_, first_};
    EXPECT_EQ(placement.look(0, first_, others), first_);
    EXPECT_EQ(sched_getcpu(), first_);
  }).join();
}

TEST_F(PlacementOfAThreadTest, LooksLessOftenWhileTheSchedulerMovesItBack) {
  std::thread([&] {
    Placement placement;
    const std::vector<int> crowd = {first_, first_, first_};
    std::vector<Time> looks;
    for (Time now = 0; looks.size() < 12; now += Placement::kLook) {
      if (!placement.is_due(now)) continue;
      looks.push_back(now);
      placement.look(now, first_, crowd);  // there again
    }
    for (std::size_t i = 2; i < looks.size(); ++i) {
      EXPECT_GE(looks[i] - looks[i - 1], looks[i - 1] - looks[i - 2]);
    }
    EXPECT_EQ(looks.back() - looks[looks.size() - 2], Placement::kRarest);

    // Once there is no reason left to move, it soon looks as often as at first.
    const std::vector<int> nobody = {-1};
    Time now = looks.back() + Placement::kRarest;
    for (int i = 0; i < 8; ++i) now += Placement::kRarest, placement.look(now, first_, nobody);
    EXPECT_TRUE(placement.is_due(now + Placement::kLook));
  }).join();
}

}  // namespace
}  // namespace taco::harp
