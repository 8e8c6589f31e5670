// Bounds that nobody can be below: not what tries everything, not the scheduler; and that are met
// where they can be.
#include "zerocache/schedule/min_moves.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "support/page_touches.h"
#include "support/zerocache_programs.h"
#include "zerocache/schedule/simulator.h"

namespace taco::zerocache {
namespace {

double of(const MinMoves& least, Way way) { return least.copies[static_cast<int>(way)]; }

Use reading(OperatorKey key, std::vector<PageId> pages, bool writes = false,
            Tier tier = Tier::kHost) {
  Use use{key, kMillisecond, {}};
  for (const PageId page : pages) use.accesses.push_back({page, tier, true, writes});
  return use;
}

TEST(MinMoves, WhatFitsMovesNothing) {
  const std::vector<Use> run = {reading(1, {0, 1}, true), reading(2, {2, 3}, true)};
  const MinMoves least = min_moves(run, {0, 4, 8});
  EXPECT_EQ(of(least, Way::kRead), 0);
  EXPECT_EQ(of(least, Way::kWrite), 0);
}

TEST(MinMoves, ARoundOverManyPagesKeepsAsManyAsThereAreFrames) {
  std::vector<Use> run;
  for (PageId page = 0; page < 20; ++page) run.push_back(reading(page, {page}, true));
  const MinMoves least = min_moves(run, {0, 6, 40});
  // One frame is what the page in use takes: 15 of 19 come again, each time others.
  EXPECT_NEAR(of(least, Way::kRead), 20 - 5, 1.0);
  EXPECT_EQ(of(least, Way::kWrite), 20 - 6);
}

TEST(MinMoves, WhatIsWrittenWholeOrSpentCostsNothing) {
  std::vector<Use> run;
  for (PageId page = 0; page < 20; ++page) {
    run.push_back({page, kMillisecond, {{page, Tier::kHost, false, true}}});
    run.push_back({100 + page, kMillisecond, {{page, Tier::kHost, true, false, true}}});
  }
  const MinMoves least = min_moves(run, {0, 4, 40});
  EXPECT_EQ(of(least, Way::kRead), 0);
  EXPECT_EQ(of(least, Way::kWrite), 0);
}

TEST(MinMoves, WhatIsInUseStays) {
  // Page 0 is open while 1, 2 and 3 come one after the other.
  const std::vector<Use> run = {reading(1, {0}), reading(2, {0, 1}), reading(3, {0, 2}),
                                reading(4, {0, 3})};
  EXPECT_NEAR(of(min_moves(run, {0, 2, 8}), Way::kRead), 3, 0.5);
}

TEST(MinMoves, DeviceAndDiskAreBoundedEachByItsOwnMemory) {
  std::vector<Use> run;
  for (PageId page = 0; page < 10; ++page) {
    run.push_back(reading(page, {page}, true, Tier::kDevice));
    run.push_back(reading(100 + page, {10 + page}, true, Tier::kHost));
  }
  const MinMoves least = min_moves(run, {4, 8, 40});
  EXPECT_EQ(of(least, Way::kDownload), 10 - 4);
  EXPECT_NEAR(of(least, Way::kUpload), 10 - 3, 1.0);
  EXPECT_EQ(of(least, Way::kWrite), 20 - 12);
  EXPECT_EQ(of(min_moves(run, {4, 30, 0}), Way::kRead), 0) << "there is no disk";
}

// Everything tried, for a memory over a disk: the least sum of fetches, and of writings back, of
// `rounds` rounds that begin with whatever is best.
struct Tried {
  double fetches, all;
};
Tried by_trying(const std::vector<Use>& run, int pages, int frames, int rounds) {
  const auto least = [&](bool writing) {
    testing::Program program;
    for (const Use& use : run) {
      program.emplace_back();
      for (const Access& access : use.accesses) {
        program.back().push_back({static_cast<int>(access.page), access.writes && writing});
      }
    }
    return testing::min_cost_by_trying(testing::repeated(program, rounds), pages, frames) / rounds;
  };
  return {least(false), least(true)};
}

TEST(MinMoves, NothingThatIsTriedIsBelow) {
  constexpr int kPages = 6, kRounds = 12;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    std::mt19937_64 random(seed);
    std::vector<Use> run;
    for (OperatorKey key = 0; key < 8; ++key) {
      std::set<PageId> chosen;
      while (chosen.size() < 1 + key % 2) chosen.insert(static_cast<PageId>(random() % kPages));
      Use use{key, kMillisecond, {}};
      for (const PageId page : chosen)
        use.accesses.push_back({page, Tier::kHost, true, random() % 3 == 0});
      run.push_back(use);
    }
    for (const std::uint32_t frames : {2u, 3u, 4u}) {
      const MinMoves least = min_moves(run, {0, frames, kPages});
      const Tried tried = by_trying(run, kPages, static_cast<int>(frames), kRounds);
      // Pages that were there at the start, and are dirty at the end, cost those rounds nothing.
      const double free = 2.0 * frames / kRounds;
      EXPECT_LE(of(least, Way::kRead), tried.fetches + free) << "seed " << seed;
      EXPECT_LE(of(least, Way::kRead) + of(least, Way::kWrite), tried.all + 2 * free)
          << "seed " << seed;
      // Where operators have one page or two, it is nearly what is possible.
      EXPECT_GE(of(least, Way::kRead) + 3, tried.fetches) << "seed " << seed;
    }
  }
}

TEST(MinMoves, TheSchedulerIsNotBelowAndNotFarAbove) {
  Model model;
  model.step_tier = Tier::kHost;
  const std::vector<Use> run = model.training_step();
  const Capacities room = {12, 40, 400};
  Costs costs;
  for (WaySpeed& way : costs.ways) way = {100e9, kMicrosecond, 2};
  Simulator simulator(room, costs, model.pages());
  for (PageId page = 0; page < model.pages(); ++page) {
    const bool gradient = page >= model.gradient(0, 0) && page < model.state(0, 0);
    if (!gradient) simulator.place(page, page < 30 ? Tier::kHost : Tier::kDisk);
  }
  simulator.runs(3, "train", run);
  constexpr int kRounds = 5;
  const SimulatedRun moved = simulator.runs(kRounds, "train", run);
  ASSERT_TRUE(simulator.faults().empty()) << simulator.faults().front();
  const MinMoves least = min_moves(run, room);
  double all = 0, bound = 0;
  for (const Way way : {Way::kUpload, Way::kDownload, Way::kRead, Way::kWrite}) {
    const auto copies = static_cast<double>(moved.copies[static_cast<int>(way)]) / kRounds;
    EXPECT_LE(of(least, way), copies + 1) << static_cast<int>(way);
    if (way == Way::kRead || way == Way::kWrite) all += copies, bound += of(least, way);
  }
  EXPECT_GT(bound, 0.5 * all);
}

}  // namespace
}  // namespace taco::zerocache
