// The machines of a group, each alone: their tables of states, line by line.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "pg/group/check_up.h"
#include "pg/group/deadlines.h"
#include "pg/group/departures.h"
#include "pg/group/farewell.h"
#include "pg/group/running_collectives.h"
#include "pg/group/timeout_report.h"
#include "pg/group/withdrawals.h"
#include "support/manual_timers.h"

namespace taco::pg {
namespace {

using testing::ManualTimers;

struct NoRunner final : OperationRunner {
  void take_st(OperationState&, harp::Transport&) override {}
} no_runner;

std::shared_ptr<OperationState> operation_of(std::uint64_t sequence, Time deadline = kNever) {
  auto operation = std::make_shared<OperationState>(OperationSpec{.kind = Kind::kBarrier},
                                                    no_runner, std::weak_ptr<harp::Stack>());
  operation->set_sequence(sequence);
  operation->deadline = deadline;
  operation->self = operation;
  return operation;
}

struct DeadlinesTest : ::testing::Test, Deadlines::Owner {
  ~DeadlinesTest() override {
    for (const auto& operation : open) operation->self = nullptr;
  }
  OperationState* overdue_st(Time now, Time* next) override {
    ++looks;
    for (const auto& operation : open) {
      if (operation->deadline <= now) return operation.get();
      *next = std::min(*next, operation->deadline);
    }
    return nullptr;
  }
  void ask_members_st(const OperationState& operation, std::uint64_t number) override {
    asked.push_back(operation.sequence());
    question = number;
  }
  void timed_out_st(const TimeoutReport& report) override {
    ended.push_back(report.operation->sequence());
    answers = 2 - report.missing;
    end(report.operation->sequence());
  }

  void begin(std::uint64_t sequence, Duration limit) {
    open.push_back(operation_of(sequence, timers.now_st() + limit));
    deadlines.watch_st(timers, open.back()->deadline);
  }
  void end(std::uint64_t sequence) {
    std::erase_if(open, [&](const auto& operation) {
      if (operation->sequence() != sequence) return false;
      deadlines.ended_st(*operation);
      operation->self = nullptr;
      return true;
    });
  }
  void answer(int rank, std::uint64_t number) {
    Notice notice;
    notice.number = number;
    deadlines.answered_st(rank, notice);
  }

  ManualTimers timers;
  Deadlines deadlines{*this, 3};
  std::vector<std::shared_ptr<OperationState>> open;
  std::vector<std::uint64_t> asked, ended;
  std::uint64_t question = 0;
  int looks = 0, answers = 0;
};

using SequenceNumbers = std::vector<std::uint64_t>;

TEST_F(DeadlinesTest, TheEarliestIsWatched) {
  begin(1, 5 * kSecond);
  begin(2, 3 * kSecond);
  begin(3, 4 * kSecond);
  EXPECT_EQ(timers.armed(), 1u);
  timers.advance(3 * kSecond - 1);
  EXPECT_EQ(looks, 0);
  timers.advance(1);
  EXPECT_EQ(asked, SequenceNumbers{2});
}

TEST_F(DeadlinesTest, WhatEndedInTimeCostsALookAtMost) {
  begin(1, kSecond);
  begin(2, 2 * kSecond);
  end(1);
  timers.advance(kSecond);
  EXPECT_EQ(looks, 1);
  EXPECT_EQ(timers.armed(), 1u) << "for the next";
  end(2);
  timers.advance(kSecond);
  EXPECT_EQ(timers.armed(), 0u) << "idle";
  EXPECT_TRUE(asked.empty());
  begin(3, kSecond);
  timers.advance(kSecond);
  EXPECT_EQ(asked, SequenceNumbers{3});
}

TEST_F(DeadlinesTest, TheOverdueEndsWhenAllHaveAnswered) {
  begin(1, kSecond);
  timers.advance(kSecond);
  answer(1, question + 1);
  answer(1, question);
  answer(1, question);
  EXPECT_TRUE(ended.empty());
  answer(2, question);
  EXPECT_EQ(ended, SequenceNumbers{1});
  EXPECT_EQ(answers, 2);
  timers.advance(kSecond);
  EXPECT_EQ(timers.armed(), 0u);
}

TEST_F(DeadlinesTest, TheSilentAreNotWaitedForLongAndOthersMayBeOverdueAsWell) {
  begin(1, kSecond);
  begin(2, kSecond);
  timers.advance(kSecond);
  begin(3, kMillisecond);
  timers.advance(Deadlines::kPatience);
  EXPECT_EQ(ended, SequenceNumbers{1});
  EXPECT_EQ(answers, 0);
  timers.advance(0);
  EXPECT_EQ(asked, (SequenceNumbers{1, 2})) << "one at a time";
  timers.advance(2 * Deadlines::kPatience);
  EXPECT_EQ(ended, (SequenceNumbers{1, 2, 3}));
}

TEST_F(DeadlinesTest, WhatEndsByItselfIsNotEndedAgain) {
  begin(1, kSecond);
  begin(2, 2 * kSecond);
  timers.advance(kSecond);
  end(1);
  answer(1, question);
  answer(2, question);
  timers.advance(kSecond + Deadlines::kPatience);
  EXPECT_EQ(ended, SequenceNumbers{2});
}

TEST(TimeoutReportTest, SaysWhoIsMissingAndWhatTheOthersDo) {
  GroupView group;
  group.world = 4;
  group.arrived.assign(4, 0);
  TimeoutReport report;
  report.operation = operation_of(7);
  report.answered = {true, true, true, false};
  report.answers.resize(4);
  report.answers[1].sequence = 7;
  report.answers[1].asked_signature = report.operation->signature;
  report.answers[2].sequence = 0;
  EXPECT_EQ(describe_arrivals(report, group, 7),
            "Arrived: ranks 0, 1; not arrived: ranks 2. No answer from ranks 3. Rank 2 has started "
            "no collective.");
  report.answers[2].knows_group = false;
  group.arrived[3] = 8;
  EXPECT_EQ(describe_arrivals(report, group, 7),
            "Arrived: ranks 0, 1, 3; not arrived: ranks 2. No answer from ranks 3. Rank 2 has no "
            "such group (any more).");
  report.operation->self = nullptr;
}

struct CheckUpTest : ::testing::Test, CheckUp::Owner {
  std::optional<CheckUp::Waiting> longest_waiting_st() const override {
    ++looks;
    return waiting;
  }
  void ask_awaited_st(std::uint64_t sequence) override { asked.push_back(sequence); }

  ManualTimers timers;
  CheckUp check_up{*this};
  std::optional<CheckUp::Waiting> waiting;
  mutable int looks = 0;
  SequenceNumbers asked;
};

TEST_F(CheckUpTest, GoesOffWhenNothingWaitsAndOnAgain) {
  check_up.watch_st(timers);
  check_up.watch_st(timers);
  timers.advance(CheckUp::kFirst);
  EXPECT_EQ(looks, 1);
  EXPECT_EQ(timers.armed(), 0u);
  check_up.watch_st(timers);
  EXPECT_EQ(timers.armed(), 1u);
  EXPECT_TRUE(asked.empty());
}

TEST_F(CheckUpTest, AsksForTheSameMoreAndMoreSeldomAndForAnotherSoonAgain) {
  check_up.watch_st(timers);
  waiting = CheckUp::Waiting{1, timers.now_st()};
  timers.advance(CheckUp::kFirst);
  EXPECT_EQ(asked, SequenceNumbers{1});
  timers.advance(CheckUp::kFirst);      // after 2
  timers.advance(2 * CheckUp::kFirst);  // after 4
  timers.advance(4 * CheckUp::kFirst);  // after 8
  EXPECT_EQ(asked, (SequenceNumbers{1, 1, 1, 1}));
  waiting = CheckUp::Waiting{2, timers.now_st()};
  timers.advance(8 * CheckUp::kFirst);
  EXPECT_EQ(asked, (SequenceNumbers{1, 1, 1, 1, 2}));
  timers.advance(CheckUp::kFirst);
  EXPECT_EQ(asked.size(), 6u);
  const int before = looks;
  timers.advance(1'000 * CheckUp::kFirst);
  EXPECT_LT(looks - before, 6 + 1'000 * CheckUp::kFirst / CheckUp::kLongest);
}

TEST_F(CheckUpTest, LetsWhatHasJustBegunBe) {
  check_up.watch_st(timers);
  waiting = CheckUp::Waiting{1, timers.now_st() + kMillisecond};
  timers.advance(CheckUp::kFirst);
  EXPECT_TRUE(asked.empty());
  timers.advance(CheckUp::kFirst);
  EXPECT_EQ(asked, SequenceNumbers{1});
}

struct WithdrawalsTest : ::testing::Test, Withdrawals::Owner {
  void unexplained_st(const Status& why, std::uint64_t from) override {
    texts.push_back(why.message());
    lowest = from;
  }
  void withdraw(std::uint64_t from, const char* text) {
    withdrawals.withdrew_st(timers, from, Status(Code::kAborted, text));
  }

  ManualTimers timers;
  Withdrawals withdrawals{*this};
  std::vector<std::string> texts;
  std::uint64_t lowest = 0;
};

TEST_F(WithdrawalsTest, TheFirstIsTheReasonFromTheLowestCollectiveOn) {
  withdraw(Withdrawals::kNoCollective, "first");
  timers.advance(Withdrawals::kGrace - 1);
  withdraw(9, "second");
  withdraw(4, "third");
  EXPECT_TRUE(texts.empty());
  timers.advance(1);
  EXPECT_EQ(texts, std::vector<std::string>{"first"});
  EXPECT_EQ(lowest, 4u);
  timers.advance(kSecond);
  EXPECT_EQ(texts.size(), 1u);
}

TEST_F(WithdrawalsTest, OfMessagesConcernNoCollective) {
  withdraw(3, "a collective");
  timers.advance(Withdrawals::kGrace);
  withdraw(Withdrawals::kNoCollective, "a message");
  timers.advance(Withdrawals::kGrace);
  EXPECT_EQ(texts.back(), "a message");
  EXPECT_EQ(lowest, Withdrawals::kNoCollective);
}

struct DeparturesTest : ::testing::Test, Departures::Owner {
  void nothing_more_from_st(int rank) override { over.push_back(rank); }

  ManualTimers timers;
  Departures departures{*this, 4};
  std::vector<int> over;
};

TEST_F(DeparturesTest, WhatALeaverSentIsWaitedForThroughTwoRounds) {
  Notice notice;
  notice.sequence = 5;
  departures.left_st(timers, 2, notice);
  EXPECT_FALSE(departures.told_by(1));
  EXPECT_EQ(departures.told_by(2)->sequence, 5u);
  timers.advance(2 * Departures::kRound - 1);
  EXPECT_TRUE(over.empty());
  departures.left_st(timers, 3, notice);
  timers.advance(2 * Departures::kRound - 1);
  EXPECT_TRUE(over.empty()) << "the rounds begin again";
  timers.advance(1);
  EXPECT_EQ(over, (std::vector<int>{2, 3}));
  EXPECT_EQ(timers.armed(), 0u);
}

struct FarewellTest : ::testing::Test, Farewell::Owner {
  void ask_receiver_st(int rank) override { asked.push_back(rank); }
  void wake_st() override { ++woken; }

  ManualTimers timers;
  Farewell farewell{*this};
  std::vector<int> asked;
  int woken = 0;
};

TEST_F(FarewellTest, DrainsWhenNothingIsOpenAndNotBeforeTheCallerLeaves) {
  farewell.idle_st();
  EXPECT_FALSE(farewell.drained().is_set());
  farewell.begin_st();
  EXPECT_FALSE(farewell.drained().is_set());
  farewell.idle_st();
  EXPECT_TRUE(farewell.drained().is_set());
  EXPECT_EQ(woken, 1);
}

TEST_F(FarewellTest, NobodyToAskIsConfirmation) {
  farewell.ask_st(timers, {});
  EXPECT_TRUE(farewell.confirmed().is_set());
  EXPECT_EQ(timers.armed(), 0u);
}

TEST_F(FarewellTest, AsksAgainThoseThatHaveNotConfirmed) {
  farewell.ask_st(timers, {1, 3});
  EXPECT_EQ(asked, (std::vector<int>{1, 3}));
  farewell.confirmed_st(1);
  farewell.confirmed_st(2);
  EXPECT_FALSE(farewell.awaits_st(1));
  EXPECT_TRUE(farewell.awaits_st(3));
  timers.advance(Farewell::kFirstAsk);
  EXPECT_EQ(asked, (std::vector<int>{1, 3, 3}));
  timers.advance(20 * Farewell::kLastAsk);
  EXPECT_GE(asked.size(), 20u);
  EXPECT_LE(asked.size(), 30u);
  EXPECT_FALSE(farewell.confirmed().is_set());
  farewell.confirmed_st(3);
  EXPECT_TRUE(farewell.confirmed().is_set());
  const std::size_t before = asked.size();
  timers.advance(kSecond);
  EXPECT_EQ(asked.size(), before);
  EXPECT_EQ(timers.armed(), 0u);
}

TEST_F(FarewellTest, AFailedGroupAsksNobody) {
  farewell.ask_st(timers, {1});
  farewell.failed_st();
  EXPECT_TRUE(farewell.confirmed().is_set());
  EXPECT_GE(woken, 1);
  timers.advance(kSecond);
  EXPECT_EQ(asked.size(), 1u);
  farewell.ask_st(timers, {1});
  EXPECT_EQ(asked.size(), 1u);
}

TEST(RunningCollectivesTest, StandInLineBeyondTheMost) {
  RunningCollectives running;
  std::vector<std::shared_ptr<OperationState>> operations;
  for (int i = 0; i < RunningCollectives::kMax + 4; ++i) {
    operations.push_back(operation_of(i + 1));
    const bool queued = running.queue(*operations.back());
    EXPECT_EQ(queued, i >= RunningCollectives::kMax);
    if (!queued) running.started();
  }
  EXPECT_EQ(running.next(), nullptr);
  running.ended();
  EXPECT_TRUE(running.queue(*operations[0])) << "behind those that stand there already";
  EXPECT_EQ(running.next()->sequence(), RunningCollectives::kMax + 1u);
  running.started();
  running.drop_from(RunningCollectives::kMax + 3);
  running.ended();
  running.ended();
  running.ended();
  EXPECT_EQ(running.next()->sequence(), RunningCollectives::kMax + 2u);
  EXPECT_EQ(running.next(), operations[0].get());
  EXPECT_EQ(running.next(), nullptr);
  for (const auto& operation : operations) operation->self = nullptr;
}

}  // namespace
}  // namespace taco::pg
