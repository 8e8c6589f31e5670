// Ranks that form a group by handles: all have come with the same members, or each hears who has
// not.
#include "pg/group/roll_call.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <latch>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/heed.h"
#include "support/machine_table.h"
#include "support/pg_values.h"
#include "support/rank_threads.h"

namespace taco::pg {
namespace {

using testing::LoopbackNetwork;
using testing::on_threads;
using testing::RankThreads;

// kShort is waited out, and long enough for whoever does come on a busy machine.
constexpr Duration kPatience = 30 * kSecond, kShort = 3 * kSecond;
constexpr std::uint64_t kId = 0x5eed;

// One rank of a new group: which processes it takes for members, and what stands for them.
struct Member {
  int process = 0;
  std::vector<int> members;
  std::uint64_t digest = 1;
  Duration timeout = kPatience;
  bool calls = true;
};

struct Heard {
  std::shared_ptr<Communicator> group;
  Status status;
};

std::vector<Heard> call_roll(RankThreads& ranks, const std::vector<Member>& those,
                             std::uint64_t id = kId) {
  std::vector<Heard> heard(those.size());
  on_threads(static_cast<int>(those.size()), [&](int i) {
    const Member& one = those[i];
    const auto own = std::ranges::find(one.members, one.process);
    const int rank = static_cast<int>(own - one.members.begin());
    heard[i].group = ranks.enter_group(id, one.members, rank, "renewed");
    if (one.calls) heard[i].status = heard[i].group->roll_call(one.digest, one.timeout);
  });
  return heard;
}

void close_all(std::vector<Heard>& heard) {
  on_threads(static_cast<int>(heard.size()), [&](int i) { (void)heard[i].group->close(kSecond); });
}

Status barrier(Communicator& group) {
  Result<OperationPtr> operation = group.start({.kind = Kind::kBarrier});
  return operation.ok() ? (*operation)->wait(0) : operation.status();
}

std::string text(const Heard& one) { return one.status.message(); }

TEST(RollCall, TheMembersOfANewGroupGoOnOnceAllHaveCome) {
  RankThreads ranks({.world = 5});
  const std::vector<int> members = {3, 0, 4, 1};
  auto heard = call_roll(ranks, {{0, members}, {1, members}, {3, members}, {4, members}});
  for (const Heard& one : heard) EXPECT_TRUE(one.status.ok()) << text(one);
  on_threads(4, [&](int i) { EXPECT_TRUE(barrier(*heard[i].group).ok()); });
  close_all(heard);
}

TEST(RollCall, ARankWithOtherMembersIsNamedToAll) {
  RankThreads ranks({.world = 4});
  const std::vector<int> three = {0, 1, 2}, four = {0, 1, 2, 3};
  auto heard = call_roll(ranks, {{0, four, 4}, {1, four, 4}, {2, three, 3}, {3, four, 4}});
  for (const Heard& one : heard) {
    EXPECT_EQ(one.status.code(), Code::kMismatch) << text(one);
    EXPECT_NE(text(one).find("rank 2"), std::string::npos) << text(one);
    EXPECT_NE(text(one).find("has 3"), std::string::npos) << text(one);
    EXPECT_NE(text(one).find("has 4"), std::string::npos) << text(one);
  }
  close_all(heard);
}

TEST(RollCall, RanksThatDisagreeAboutRankZeroFindOut) {
  RankThreads ranks({.world = 3});
  const std::vector<int> one_order = {0, 1, 2}, another = {2, 1, 0};
  auto heard = call_roll(ranks, {{0, one_order, 1}, {1, one_order, 1}, {2, another, 2}});
  for (const Heard& one : heard) {
    EXPECT_EQ(one.status.code(), Code::kMismatch) << text(one);
    EXPECT_NE(text(one).find("in another order"), std::string::npos) << text(one);
  }
  close_all(heard);
}

TEST(RollCall, WhoIsNoMemberToTheOthersHearsIt) {
  RankThreads ranks({.world = 3});
  const std::vector<int> two = {0, 1}, three = {0, 1, 2};
  auto heard = call_roll(ranks, {{0, two, 2}, {1, two, 2}, {2, three, 3}});
  EXPECT_TRUE(heard[0].status.ok()) << text(heard[0]);
  EXPECT_TRUE(heard[1].status.ok()) << text(heard[1]);
  EXPECT_EQ(heard[2].status.code(), Code::kMismatch) << text(heard[2]);
  EXPECT_NE(text(heard[2]).find("rank 0 has 2, and rank 2 is not one of them"), std::string::npos)
      << text(heard[2]);
  on_threads(2, [&](int i) { EXPECT_TRUE(barrier(*heard[i].group).ok()); });
  close_all(heard);
}

TEST(RollCall, RankZeroNamesThoseThatDoNotCome) {
  RankThreads ranks({.world = 4});
  const std::vector<int> all = {0, 1, 2, 3};
  auto heard = call_roll(ranks, {{0, all, 1, kShort}, {1, all, 1, kPatience}});
  for (const Heard& one : heard) {
    EXPECT_EQ(one.status.code(), Code::kRendezvous) << text(one);
    EXPECT_NE(text(one).find("did not come: ranks 2, 3"), std::string::npos) << text(one);
  }
  close_all(heard);
}

TEST(RollCall, AMemberThatHearsNothingNamesRankZero) {
  RankThreads ranks({.world = 2});
  auto heard = call_roll(ranks, {{1, {0, 1}, 1, 300 * kMillisecond}});  // nobody to be late
  EXPECT_EQ(heard[0].status.code(), Code::kRendezvous);
  EXPECT_NE(text(heard[0]).find("no word from rank 0"), std::string::npos) << text(heard[0]);
  close_all(heard);
}

TEST(RollCall, ADeadMemberIsNamedToAll) {
  RankThreads ranks({.world = 4});
  const std::vector<int> all = {0, 1, 2, 3};
  ranks.network().kill(2);
  auto heard = call_roll(ranks, {{0, all}, {1, all}, {3, all}});
  for (const Heard& one : heard) {
    ASSERT_EQ(one.status.code(), Code::kPeerLost) << text(one);
    ASSERT_NE(one.status.peer_loss(), nullptr);
    EXPECT_EQ(one.status.peer_loss()->rank, 2);
  }
  close_all(heard);
}

TEST(RollCall, AMemberThatDiesInTheMiddleIsNamedToAll) {
  RankThreads ranks({.world = 4});
  const std::vector<int> all = {0, 1, 2, 3};
  std::vector<Heard> heard(2);
  std::latch under_way(2);
  on_threads(3, [&](int i) {
    if (i == 2) {
      under_way.wait();
      return ranks.network().kill(3);
    }
    heard[i].group = ranks.enter_group(kId, all, i, "renewed");
    under_way.count_down();
    heard[i].status = heard[i].group->roll_call(1, kPatience);
  });
  for (const Heard& one : heard) {
    ASSERT_EQ(one.status.code(), Code::kPeerLost) << text(one);
    EXPECT_EQ(one.status.peer_loss()->rank, 3);
  }
  close_all(heard);
}

TEST(RollCall, WhoIsInterruptedIsNamedToAll) {
  for (const int interrupted : {0, 1}) {
    RankThreads ranks({.world = 3});
    std::vector<Heard> heard(2);
    on_threads(2, [&](int i) {
      heard[i].group = ranks.enter_group(kId, {0, 1, 2}, i, "renewed");
      std::optional<Heed> heed;
      if (i == interrupted) heed.emplace([] { return Status(Code::kAborted, "enough"); });
      heard[i].status = heard[i].group->roll_call(1, kPatience);
    });
    const std::string who = "rank " + std::to_string(interrupted) + ": enough";
    for (const Heard& one : heard) {
      EXPECT_EQ(one.status.code(), Code::kAborted);
      EXPECT_NE(text(one).find(who), std::string::npos) << text(one);
    }
    close_all(heard);
  }
}

TEST(RollCall, WhoComesToAGroupThatHasEndedHearsThat) {
  RankThreads ranks({.world = 3});
  auto first = call_roll(ranks, {{0, {0, 1}}, {1, {0, 1}}});
  for (const Heard& one : first) EXPECT_TRUE(one.status.ok()) << text(one);
  close_all(first);
  auto late = call_roll(ranks, {{2, {0, 2}}});
  EXPECT_EQ(late[0].status.code(), Code::kPeerLost) << text(late[0]);
  EXPECT_NE(text(late[0]).find("left"), std::string::npos) << text(late[0]);
  close_all(late);
}

TEST(RollCall, AGroupOfOneAsksNobody) {
  RankThreads ranks({.world = 2});
  auto heard = call_roll(ranks, {{1, {1}}});
  EXPECT_TRUE(heard[0].status.ok());
  EXPECT_TRUE(barrier(*heard[0].group).ok());
  close_all(heard);
}

TEST(RollCall, AFailureIsToldOnceToThoseWhoAsk) {
  RankThreads ranks({.world = 2});
  auto heard = call_roll(ranks, {{0, {0, 1}}, {1, {0, 1}}});
  std::latch told(3);
  heard[0].group->on_failure([&] { told.count_down(); });
  heard[1].group->on_failure([&] { told.count_down(); });
  heard[0].group->abort(Status(Code::kAborted, "enough"));
  EXPECT_EQ(barrier(*heard[1].group).code(), Code::kAborted);
  heard[1].group->on_failure([&] { told.count_down(); });  // it has failed already
  told.wait();
  close_all(heard);
}

TEST(RollCall, TheTableOfItsStates) {
  using enum RollCall::State;
  taco::expect_table<RollCall::State>({{kApart, {kCalling, kAnswering, kFailed}},
                                       {kCalling, {kComplete, kFailed}},
                                       {kAnswering, {kComplete, kFailed}},
                                       {kComplete, {}},
                                       {kFailed, {}}});
}

}  // namespace
}  // namespace taco::pg
