// Process sets: made and removed by all ranks, overlapping, busy at the same time, and gone without
// a trace.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "support/controller_ranks.h"
#include "support/eventually.h"

namespace taco::pg::controller {
namespace {

using testing::add_set;
using testing::ControllerRanks;
using testing::eventually;
using testing::remove_set;
using testing::request_of;
using testing::says;
using testing::submit;
using testing::Submitted;
using testing::sum_floats;
using Floats = std::vector<float>;

int added(Controller& to, const std::vector<std::int64_t>& members) {
  const Submitted made = add_set(to, members);
  EXPECT_TRUE(made.wait().ok()) << made.wait().message();
  return made.wait().ok() ? made.outcome().set : -1;
}

TEST(ProcessSets, AreNumberedAlikeOnAllRanksWhateverTheOrderOfTheirs) {
  ControllerRanks ranks({.world = 4});
  ranks.run([](int rank, Controller& to) {
    EXPECT_EQ(to.sets().value(), std::vector<int>{0});
    EXPECT_EQ(to.ranks_of(0).value(), (std::vector<int>{0, 1, 2, 3}));
    std::vector<std::int64_t> members = {3, 1};
    if (rank % 2 == 0) std::ranges::reverse(members);
    EXPECT_EQ(added(to, members), 1);
    EXPECT_EQ(added(to, {2}), 2);
    EXPECT_EQ(to.ranks_of(1).value(), (std::vector<int>{1, 3}));
    EXPECT_EQ(to.sets().value(), (std::vector<int>{0, 1, 2}));
    EXPECT_TRUE(to.ranks_of(7).value().empty());
  });
}

TEST(ProcessSets, RunOperationsOfTheirMembersAlone) {
  ControllerRanks ranks({.world = 4});
  ranks.run([](int rank, Controller& to) {
    const int low = added(to, {0, 1, 2}), high = added(to, {2, 3}), one = added(to, {3});
    std::vector<Submitted> made;
    if (rank <= 2) made.push_back(sum_floats(to, "x", {float(rank)}, low));
    if (rank >= 2) made.push_back(sum_floats(to, "x", {float(10 * rank)}, high));
    if (rank == 3) made.push_back(sum_floats(to, "x", {7}, one));
    made.push_back(sum_floats(to, "x", {1}));
    for (const Submitted& each : made) ASSERT_TRUE(each.wait().ok()) << each.wait().message();
    EXPECT_EQ(made.back().floats(), Floats{4});
    EXPECT_EQ(made.front().floats(), Floats{rank <= 2 ? 3.0f : 50.0f});
    if (rank >= 2) {
      EXPECT_EQ(made[1].floats(), Floats{rank == 2 ? 50.0f : 7.0f});
    }
    if (rank == 0) {
      EXPECT_TRUE(says(sum_floats(to, "y", {1}, high).refusal, Code::kInvalidArgument,
                       {"rank 0 is not of process set 2", "ranks 2, 3"}));
    }
  });
}

TEST(ProcessSets, TellRootsAndRowsByTheirOwnRanks) {
  ControllerRanks ranks({.world = 3});
  ranks.run([](int rank, Controller& to) {
    const int set = added(to, {0, 2});
    if (rank == 1) return;
    Request request = request_of(Kind::kBroadcast, "x", 0);
    request.root = 1;  // rank 2 of all
    const Submitted made = testing::submit_floats(to, set, request, {float(rank)});
    ASSERT_TRUE(made.wait().ok()) << made.wait().message();
    EXPECT_EQ(made.floats(), Floats{2});
    const Submitted gather =
        testing::submit_floats(to, set, request_of(Kind::kAllGather, "g", 0),
                               Floats(static_cast<std::size_t>(rank + 1), float(rank)));
    ASSERT_TRUE(gather.wait().ok()) << gather.wait().message();
    EXPECT_EQ(gather.floats(), (Floats{0, 2, 2, 2}));
    const Submitted join = submit(to, set, request_of(Kind::kJoin, "j", 0));
    ASSERT_TRUE(join.wait().ok()) << join.wait().message();
    EXPECT_TRUE(join.outcome().last_joined == 0 || join.outcome().last_joined == 2);
  });
}

TEST(ProcessSets, DisjointOnesGoOnWhileOthersWait) {
  ControllerRanks ranks({.world = 4});
  std::vector<Submitted> waiting(4);
  ranks.run([&](int rank, Controller& to) {
    const int low = added(to, {0, 1}), high = added(to, {2, 3});
    if (rank == 0) waiting[0] = sum_floats(to, "late", {1}, low);
    if (rank < 2) return;
    for (int i = 0; i < 50; ++i) {
      const Submitted made = sum_floats(to, "x", {float(i)}, high);
      ASSERT_TRUE(made.wait().ok()) << made.wait().message();
      EXPECT_EQ(made.floats(), Floats{float(2 * i)});
    }
  });
  EXPECT_FALSE(waiting[0].submission->done());
  EXPECT_TRUE(sum_floats(ranks.at(1), "late", {2}, 1).wait().ok());
  EXPECT_TRUE(waiting[0].wait().ok());
}

TEST(ProcessSets, OneThatIsThereAlreadyIsRefusedOnAllRanks) {
  ControllerRanks ranks({.world = 3});
  ranks.run([](int, Controller& to) {
    EXPECT_EQ(added(to, {0, 2}), 1);
    EXPECT_TRUE(says(add_set(to, {2, 0}).wait(), Code::kInvalidArgument, {"process set 1"}));
    EXPECT_TRUE(says(add_set(to, {0, 1, 2}).wait(), Code::kInvalidArgument, {"process set 0"}));
    EXPECT_TRUE(says(add_set(to, {0, 0}).refusal, Code::kInvalidArgument, {"twice"}));
    EXPECT_TRUE(says(add_set(to, {3}).refusal, Code::kInvalidArgument, {"3"}));
    EXPECT_EQ(added(to, {1, 2}), 2) << "and the number of the refused is not used up";
  });
}

TEST(ProcessSets, RanksThatNameDifferentOnesAllHearSo) {
  ControllerRanks ranks({.world = 2});
  ranks.run([](int rank, Controller& to) {
    EXPECT_EQ(add_set(to, {rank}).wait().code(), Code::kMismatch);
    EXPECT_EQ(added(to, {1}), 1);
    EXPECT_EQ(remove_set(to, 1).wait().code(), Code::kOk);
  });
}

TEST(ProcessSets, WhatIsPendingInARemovedOneEndsAndItsNumberIsNotUsedAgain) {
  ControllerRanks ranks({.world = 3});
  ranks.run([](int rank, Controller& to) {
    const int set = added(to, {0, 1});
    Submitted lonely;
    if (rank == 0) lonely = sum_floats(to, "lonely", {1}, set);
    ASSERT_TRUE(remove_set(to, set).wait().ok());
    if (rank == 0) {
      EXPECT_TRUE(says(lonely.wait(), Code::kAborted, {"lonely", "process set 1 was removed"}));
    }
    EXPECT_TRUE(says(sum_floats(to, "x", {1}, set).refusal, Code::kInvalidArgument,
                     {"process set 1 is not known"}));
    EXPECT_TRUE(says(remove_set(to, set).refusal, Code::kInvalidArgument, {"is not known"}));
    EXPECT_EQ(added(to, {0, 1}), 2);
    if (rank < 2) {
      EXPECT_TRUE(sum_floats(to, "x", {1}, 2).wait().ok());
    }
  });
}

// Groups of this process that have not been destroyed.
std::size_t groups_here() {
  const std::vector<GroupReport> all = report_all_groups();
  return static_cast<std::size_t>(
      std::ranges::count_if(all, [](const GroupReport& each) { return !each.destroyed; }));
}

TEST(ProcessSets, ThousandsMadeAndRemovedLeaveNothing) {
  ControllerRanks ranks({.world = 2});
  const std::size_t before = groups_here();
  ranks.run([](int rank, Controller& to) {
    for (int i = 0; i < 1000; ++i) {
      const int set = added(to, {i % 2});
      if (rank == i % 2 && i % 10 == 0) {
        EXPECT_TRUE(sum_floats(to, "x", {1}, set).wait().ok());
      }
      ASSERT_TRUE(remove_set(to, set).wait().ok()) << i;
    }
    EXPECT_EQ(to.sets().value(), std::vector<int>{0});
  });
  EXPECT_TRUE(eventually([&] { return groups_here() == before; })) << groups_here();
}

TEST(ProcessSets, ThoseOfSeveralRanksLeaveNothingEither) {
  ControllerRanks ranks({.world = 3});
  const std::size_t before = groups_here();
  ranks.run([](int rank, Controller& to) {
    const std::vector<std::vector<std::int64_t>> pairs = {{0, 1}, {1, 2}, {0, 2}};
    for (int i = 0; i < 300; ++i) {
      const std::vector<std::int64_t>& pair = pairs[i % 3];
      const int set = added(to, pair);
      if (std::ranges::find(pair, rank) != pair.end()) {
        const Submitted made = sum_floats(to, "x", {float(i)}, set);
        ASSERT_TRUE(made.wait().ok()) << made.wait().message();
        EXPECT_EQ(made.floats(), Floats{float(2 * i)});
      }
      ASSERT_TRUE(remove_set(to, set).wait().ok()) << i;
    }
  });
  EXPECT_TRUE(eventually([&] { return groups_here() == before; })) << groups_here();
  for (int rank = 0; rank < 3; ++rank) {
    for (int other = 0; other < 3; ++other) {
      const auto all_heard = [&] { return ranks.ranks().network().unheard(rank, other) == 0; };
      EXPECT_TRUE(other == rank || eventually(all_heard));
    }
  }
}

}  // namespace
}  // namespace taco::pg::controller
