#include "harp/session/path_mtu.h"

#include <gtest/gtest.h>

#include <set>

namespace taco::harp {
namespace {

constexpr std::size_t kBase = PathMtu::kBase;
constexpr Duration kWait = 5 * kMillisecond;

// A path that carries `mtu` bytes: sends what the machine asks for, answers what fits, and lets
// time pass until the search is over. Returns how many probes that took.
int search_to_end(PathMtu& path, std::size_t mtu, Time& now, bool answers = true) {
  int probes = 0;
  for (;;) {
    std::set<std::size_t> arrived;
    while (const std::size_t bytes = path.next_probe()) {
      ++probes;
      path.on_probe_sent(now, kWait);
      if (answers && bytes <= mtu) arrived.insert(bytes);
    }
    now += kMillisecond;
    for (const std::size_t bytes : arrived) path.on_probe_acked(bytes, now);
    if (path.next_probe() != 0) continue;
    if (path.deadline() == kNever || !answers) return probes;
    now = path.deadline();
    path.on_timer(now);
  }
}

// It has carried datagrams of that size for a while.
struct ProvenPath {
  explicit ProvenPath(std::size_t bytes) {
    path.open(bytes, now);
    path.on_proof(bytes, now);
  }
  PathMtu path;
  Time now = kSecond;
};

// Runs of full-size data that are lost, while nothing larger than kBase arrives.
void lose(PathMtu& path, std::size_t bytes, int runs, Time& now) {
  for (int i = 0; i < runs; ++i) {
    path.on_data_lost(bytes, now, now + kMillisecond);
    now += 2 * kMillisecond;
  }
}

TEST(PathMtu, NothingAboveTheBaseIsReliedOnUnproven) {
  PathMtu path;
  path.open(8972, 0);
  EXPECT_EQ(path.size(), kBase);
  EXPECT_FALSE(path.in_doubt());
}

TEST(PathMtu, FindsTheLargestUsualSizeThatAPathCarries) {
  for (const auto& [mtu, found] :
       std::initializer_list<std::pair<std::size_t, std::size_t>>{{8972, 8972},
                                                                  {65000, 8972},
                                                                  {8971, 8848},
                                                                  {4100, 4052},
                                                                  {1472, 1472},
                                                                  {1471, 1452},
                                                                  {1400, 1392},
                                                                  {1232, 1232},
                                                                  {1231, 1200},
                                                                  {1200, 1200}}) {
    PathMtu path;
    Time now = 0;
    path.open(8972, now);
    search_to_end(path, mtu, now);
    EXPECT_EQ(path.size(), found) << mtu;
    EXPECT_LT(now, 100 * kMillisecond);
  }
}

TEST(PathMtu, AnUnusualLimitOfTheEndsIsACandidateItself) {
  PathMtu path;
  Time now = 0;
  path.open(3000, now);
  search_to_end(path, 3000, now);
  EXPECT_EQ(path.size(), 3000u);
}

TEST(PathMtu, AProofMakesProbingNeedless) {
  PathMtu path;
  path.open(8972, 0);
  path.on_proof(8972, 0);
  EXPECT_EQ(path.size(), 8972u);
  EXPECT_EQ(path.next_probe(), 0u);
  path.on_proof(1000, 1);
  EXPECT_EQ(path.size(), 8972u);
}

TEST(PathMtu, OneLostProbeDoesNotDecide) {
  PathMtu path;
  Time now = 0;
  path.open(1472, now);
  while (path.next_probe() != 0) path.on_probe_sent(now, kWait);
  now = path.deadline();
  path.on_timer(now);
  EXPECT_NE(path.next_probe(), 0u);
  search_to_end(path, 1472, now);
  EXPECT_EQ(path.size(), 1472u);
}

TEST(PathMtu, ABlackHoleIsSuspectedAndLeftForTheLargestSizeThatPasses) {
  ProvenPath proven(8972);
  PathMtu& path = proven.path;
  Time& now = proven.now;
  lose(path, 8960, 3, now);
  ASSERT_TRUE(path.in_doubt());
  EXPECT_EQ(path.usable(), kBase);
  const Time suspected = now;
  search_to_end(path, 1472, now);
  EXPECT_FALSE(path.in_doubt());
  EXPECT_EQ(path.usable(), 1472u);
  EXPECT_LT(now - suspected, 200 * kMillisecond);
}

TEST(PathMtu, ASegmentLostTwiceInARowIsEnoughToAsk) {
  ProvenPath proven(1472);
  PathMtu& path = proven.path;
  Time& now = proven.now;
  lose(path, 1472, 1, now);
  EXPECT_FALSE(path.in_doubt());
  lose(path, 1472, 1, now);
  EXPECT_TRUE(path.in_doubt());
}

TEST(PathMtu, LossesThatSomethingAsLargeHasOvertakenAreNoEvidence) {
  ProvenPath proven(8972);
  PathMtu& path = proven.path;
  Time& now = proven.now;
  for (int i = 0; i < 100; ++i) {
    path.on_data_acked(8960, now + kMillisecond);
    lose(path, 8960, 1, now);
  }
  EXPECT_FALSE(path.in_doubt());
}

TEST(PathMtu, SmallerDataThatArriveDoNotHideTheLossOfLargerOnes) {
  ProvenPath proven(8972);
  PathMtu& path = proven.path;
  Time& now = proven.now;
  for (int i = 0; i < 3; ++i) {
    path.on_data_acked(1472, now + kMillisecond);
    lose(path, 8960, 1, now);
  }
  EXPECT_TRUE(path.in_doubt());
}

TEST(PathMtu, AFalseAlarmChangesNothingAndIsNotRaisedAgainAtOnce) {
  ProvenPath proven(1472);
  PathMtu& path = proven.path;
  Time& now = proven.now;
  lose(path, 1472, 3, now);
  ASSERT_TRUE(path.in_doubt());
  search_to_end(path, 1472, now);
  EXPECT_EQ(path.usable(), 1472u);
  lose(path, 1472, 10, now);
  EXPECT_FALSE(path.in_doubt());
  now += 10 * kSecond;
  lose(path, 1472, 1, now);
  EXPECT_TRUE(path.in_doubt());
}

TEST(PathMtu, SilenceIsNoBlackHole) {
  ProvenPath proven(8972);
  PathMtu& path = proven.path;
  Time& now = proven.now;
  lose(path, 8960, 3, now);
  for (int i = 0; i < 20; ++i) {
    search_to_end(path, 0, now, /*answers=*/false);
    now = path.deadline();
    path.on_timer(now);
  }
  EXPECT_TRUE(path.in_doubt());
  EXPECT_EQ(path.size(), 8972u);
  search_to_end(path, 8972, now);
  EXPECT_EQ(path.usable(), 8972u);
}

TEST(PathMtu, SilenceIsAskedAboutEverMoreRarely) {
  ProvenPath proven(8972);
  PathMtu& path = proven.path;
  Time& now = proven.now;
  lose(path, 8960, 3, now);
  const Time start = now;
  int rounds = 0;
  while (now - start < 10 * kSecond) {
    // Now and then there is no room for all probes.
    while (path.next_probe() != 0 && (rounds % 4 != 3 || path.deadline() == kNever)) {
      path.on_probe_sent(now, kWait);
    }
    now = path.deadline();
    path.on_timer(now);
    ++rounds;
  }
  EXPECT_LT(rounds, 40);
  EXPECT_GT(rounds, 10) << "it goes on";
  const Time back = now;
  search_to_end(path, 1472, now);
  EXPECT_EQ(path.usable(), 1472u);
  EXPECT_LT(now - back, kSecond);
}

TEST(PathMtu, GrowthIsLookedForAfterTenSecondsThenEverMoreRarely) {
  ProvenPath proven(8972);
  PathMtu& path = proven.path;
  Time& now = proven.now;
  lose(path, 8960, 3, now);
  search_to_end(path, 1472, now);
  Time last = now;
  Duration before = 0;
  for (int i = 0; i < 12; ++i) {
    while (path.next_probe() == 0) {
      now += kSecond;
      path.on_traffic(now);
    }
    const Duration interval = now - last;
    EXPECT_GE(interval, i == 0 ? 9 * kSecond : before);
    EXPECT_LE(interval, PathMtu::kLastGrowth + 2 * kSecond);
    before = interval - 2 * kSecond;
    search_to_end(path, 1472, now);
    EXPECT_EQ(path.usable(), 1472u);
    last = now;
  }
  EXPECT_GE(before, PathMtu::kLastGrowth - 4 * kSecond);
  now += 2 * PathMtu::kLastGrowth;
  path.on_traffic(now);
  search_to_end(path, 8972, now);
  EXPECT_EQ(path.usable(), 8972u);
}

TEST(PathMtu, AnIdlePathIsNotProbed) {
  PathMtu path;
  Time now = 0;
  path.open(8972, now);
  search_to_end(path, 1472, now);
  EXPECT_EQ(path.deadline(), kNever);
  EXPECT_EQ(path.next_probe(), 0u);
}

TEST(PathMtu, APathThatLeadsElsewhereIsAskedAgain) {
  ProvenPath proven(8972);
  PathMtu& path = proven.path;
  Time& now = proven.now;
  path.doubt(now);
  EXPECT_EQ(path.usable(), kBase);
  search_to_end(path, 4052, now);
  EXPECT_EQ(path.usable(), 4052u);
}

}  // namespace
}  // namespace taco::harp
