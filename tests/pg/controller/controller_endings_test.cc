// How a controller ends, on all ranks, whoever begins: shut down in every order, or because a rank
// is lost. And those that wait meanwhile: who is missing, and that nothing turns while nobody asks.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>

#include "base/log.h"
#include "support/controller_ranks.h"
#include "support/eventually.h"

namespace taco::pg::controller {
namespace {

using testing::add_set;
using testing::ControllerRanks;
using testing::eventually;
using testing::on_threads;
using testing::request_of;
using testing::RequestMemory;
using testing::says;
using testing::submit;
using testing::Submitted;
using testing::sum_floats;
using Floats = std::vector<float>;

TEST(ControllerEnd, WhatIsPendingAnywhereIsToldWhoShutItDown) {
  for (int first = 0; first < 3; ++first) {
    ControllerRanks ranks({.world = 3});
    std::vector<Submitted> pending;
    for (int rank = 0; rank < 2; ++rank) pending.push_back(sum_floats(ranks.at(rank), "x", {1}));
    ranks.at(first).shutdown();
    const std::string who = "rank " + std::to_string(first);
    for (const Submitted& each : pending)
      EXPECT_TRUE(says(each.wait(), Code::kAborted, {"allreduce 'x'", who}));
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_TRUE(eventually([&] { return !sum_floats(ranks.at(rank), "y", {1}).refusal.ok(); }));
      EXPECT_TRUE(says(sum_floats(ranks.at(rank), "y", {1}).refusal, Code::kAborted, {who}));
      ranks.at(rank).shutdown();
      ranks.at(rank).shutdown();
    }
    EXPECT_TRUE(ranks.ranks().group(0).error().ok()) << "the program's own group goes on";
  }
}

class ControllerEndSeeds : public ::testing::TestWithParam<unsigned> {};
INSTANTIATE_TEST_SUITE_P(Seeds, ControllerEndSeeds, ::testing::Range(0u, 24u));

// The rank that has its last result shuts down while others still run the same operation.
TEST_P(ControllerEndSeeds, WhatAllHaveAgreedOnIsDoneAlthoughSomebodyIsInAHurry) {
  const int world = 2 + static_cast<int>(GetParam() % 3);
  ControllerRanks ranks({.world = world, .seed = GetParam()});
  ranks.run([&](int rank, Controller& to) {
    std::vector<Submitted> made;
    for (int i = 0; i < 8; ++i) {
      const std::size_t count = i % 2 == 0 ? 3 : 20'000;
      made.push_back(sum_floats(to, std::to_string(i), Floats(count, float(rank + i))));
    }
    for (int i = 0; i < 8; ++i) {
      ASSERT_TRUE(made[i].wait().ok()) << made[i].wait().message() << ", seed " << GetParam();
      EXPECT_EQ(made[i].floats().back(), float(world * i + world * (world - 1) / 2));
    }
    to.shutdown();
  });
}

TEST_P(ControllerEndSeeds, AllMayShutDownAtOnceWithSetsAndRequestsOpen) {
  ControllerRanks ranks({.world = 3, .seed = GetParam()});
  ranks.run([&](int rank, Controller& to) {
    const Submitted set = add_set(to, {0, 2});
    ASSERT_TRUE(set.wait().ok()) << set.wait().message();
    std::vector<Submitted> open;
    open.push_back(sum_floats(to, "only " + std::to_string(rank), {1}));
    if (rank == 0) open.push_back(sum_floats(to, "x", {1}, set.outcome().set));
    if ((GetParam() + static_cast<unsigned>(rank)) % 3 != 0) to.shutdown();
    for (const Submitted& each : open) {
      EXPECT_TRUE(says(each.wait(), Code::kAborted, {"shut the controller down"}))
          << "seed " << GetParam();
    }
  });
}

TEST(ControllerEnd, IsNotHeldUpByRanksThatDoNothing) {
  ControllerRanks ranks({.world = 4});
  const Time before = monotonic_now();
  ranks.at(3).shutdown();
  EXPECT_LT(monotonic_now() - before, 5 * kSecond);
  EXPECT_TRUE(says(sum_floats(ranks.at(0), "x", {1}).refusal, Code::kAborted, {"rank 3"}));
}

TEST(ControllerEnd, EndsTheOnlyRankOfAGroupToo) {
  ControllerRanks ranks({.world = 1});
  EXPECT_TRUE(sum_floats(ranks.at(0), "x", {1}).wait().ok());
  ranks.at(0).shutdown();
  EXPECT_TRUE(says(sum_floats(ranks.at(0), "x", {1}).refusal, Code::kAborted, {"rank 0"}));
}

TEST(ControllerEnd, ALostRankEndsEverythingOnTheOthersAndIsNamed) {
  ControllerRanks ranks({.world = 3});
  ranks.run([](int, Controller& to) { EXPECT_TRUE(sum_floats(to, "x", {1}).wait().ok()); });
  const Submitted pending = sum_floats(ranks.at(0), "x", {1});
  ranks.ranks().network().kill(2);
  EXPECT_TRUE(says(pending.wait(), Code::kPeerLost, {"allreduce 'x'", "rank 2"}));
  ASSERT_NE(pending.wait().peer_loss(), nullptr);
  EXPECT_EQ(pending.wait().peer_loss()->rank, 2);
  // A rank with nothing pending learns of it, too.
  EXPECT_TRUE(eventually([&] { return !sum_floats(ranks.at(1), "y", {1}).refusal.ok(); }));
  EXPECT_TRUE(says(sum_floats(ranks.at(1), "y", {1}).refusal, Code::kPeerLost, {"rank 2"}));
  ranks.at(1).shutdown();
  ranks.at(0).shutdown();
}

TEST(ControllerEnd, ALossIsToldByTheNumberThatTheRankHasAmongAll) {
  ControllerRanks ranks({.world = 3});
  std::vector<Submitted> sets(3);
  ranks.run([&](int rank, Controller& to) {
    sets[rank] = add_set(to, {1, 2});
    ASSERT_TRUE(sets[rank].wait().ok());
  });
  const Submitted pending = sum_floats(ranks.at(1), "x", {1}, 1);
  ranks.ranks().network().kill(2);
  ASSERT_EQ(pending.wait().code(), Code::kPeerLost) << pending.wait().message();
  ASSERT_NE(pending.wait().peer_loss(), nullptr);
  EXPECT_EQ(pending.wait().peer_loss()->rank, 2);
}

TEST_P(ControllerEndSeeds, ARankDiesAmidOperationsAndEverythingEndsSoon) {
  ControllerRanks ranks({.world = 3, .seed = GetParam()});
  std::atomic<int> done{0};
  on_threads(4, [&](int thread) {
    if (thread == 3) {
      eventually([&] { return done.load() > static_cast<int>(GetParam()); });
      return ranks.ranks().network().kill(static_cast<int>(GetParam() % 3));
    }
    for (int i = 0;; ++i) {
      const Submitted made =
          sum_floats(ranks.at(thread), std::to_string(i % 4), Floats(i % 3 == 0 ? 30'000 : 2, 1));
      const Status status = made.wait();
      ++done;
      if (status.ok()) continue;
      EXPECT_TRUE(status.code() == Code::kPeerLost || status.code() == Code::kAborted)
          << status.message() << ", seed " << GetParam();
      return;
    }
  });
}

TEST(ControllerEnd, ARankWithoutMemoryForAResultEndsEverything) {
  ControllerRanks ranks({.world = 2});
  ranks.run([](int rank, Controller& to) {
    const auto memory =
        std::make_shared<RequestMemory>(std::vector<testing::Bytes>{testing::bytes_of({1})});
    if (rank == 1) memory->fail();
    const Submitted made = submit(to, 0, request_of(Kind::kAllReduce, "x", 1), memory);
    EXPECT_TRUE(says(made.wait(), Code::kResource, {"no memory, says the test"}));
  });
}

// Two broadcasts of one shape, of which the root cannot take part in one: the other rank must not
// get the second one's numbers for the first.
TEST(ControllerEnd, AnOperationThatARankLeavesOutIsTakenForNoOther) {
  for (int turn = 0; turn < 30; ++turn) {
    ControllerRanks ranks({.world = 2});
    ranks.run([](int rank, Controller& to) {
      const auto broadcast = [&](const char* name, float number, bool fails) {
        auto memory = std::make_shared<RequestMemory>(
            std::vector<taco::testing::Bytes>{taco::testing::bytes_of(std::vector<float>{number})});
        if (fails) memory->fail();
        return submit(to, 0, request_of(Kind::kBroadcast, name, 1), memory);
      };
      const Submitted first = broadcast("first", 1, rank == 0);
      const Submitted second = broadcast("second", 2, false);
      EXPECT_FALSE(first.wait().ok()) << first.floats()[0];
      if (second.wait().ok()) EXPECT_EQ(second.floats()[0], 2);
    });
  }
}

// Rank 1 stands still amid an operation, and holds up the other no longer than the timeout says.
TEST(ControllerEnd, WaitsForDataThatDoesNotMoveNoLongerThanTheTimeout) {
  ControllerRanks ranks({.world = 2, .timeout = 60 * kSecond}, {.timeout = 300 * kMillisecond});
  std::atomic<bool> stands{false}, goes_on{false};
  const auto still = std::make_shared<testing::UnrulyTensors>();
  still->give_inputs = [&]() -> std::vector<Piece> {
    stands = true;
    eventually([&] { return goes_on.load(); });
    throw std::runtime_error("it stood still");
  };
  const Submitted mine = sum_floats(ranks.at(0), "x", {1});
  const Submitted other =
      testing::submit_tensors(ranks.at(1), 0, request_of(Kind::kAllReduce, "x", 1), still);
  EXPECT_TRUE(eventually([&] { return stands.load(); }));
  const Time before = monotonic_now();
  ranks.at(0).shutdown();
  EXPECT_LT(monotonic_now() - before, 5 * kSecond);
  EXPECT_TRUE(says(mine.wait(), Code::kAborted, {"allreduce 'x'", "0.3 s", "timeout"}));
  EXPECT_TRUE(
      says(sum_floats(ranks.at(0), "y", {1}).refusal, Code::kAborted, {"allreduce 'x'", "0.3 s"}));
  goes_on = true;
  EXPECT_FALSE(other.wait().ok());
}

// Counts requests whose negotiation began, and those that ended.
class EndsListener final : public Listener {
 public:
  void negotiating(int, const Request&, Time) override { ++began_; }
  void agreed(int, const Response&, Time) override {}
  void activity(int, const Response&, const char*, Time) override {}
  void ended(int, const Response& response, Time) override {
    ended_ += static_cast<int>(response.requests.size());
  }
  void given_up(int set, const Request& request, Time) override {
    ++ended_;
    given_up_.push_back(std::to_string(set) + " " + request.name);
  }
  void cycle(Time) override {}
  int began_ = 0, ended_ = 0;
  std::vector<std::string> given_up_;
};

TEST(ControllerEnd, IsToldToAListenerOfWhatIsPendingToo) {
  ControllerRanks ranks({.world = 2});
  const auto listener = std::make_shared<EndsListener>();
  ASSERT_TRUE(ranks.at(0).set_listener(listener).ok());
  ranks.run([](int rank, Controller& to) {
    ASSERT_TRUE(add_set(to, {0}).wait().ok());
    ASSERT_TRUE(sum_floats(to, "x", {1}).wait().ok());
    if (rank == 0) (void)sum_floats(to, "x", {1});
    ASSERT_TRUE(submit(to, 0, request_of(Kind::kBarrier, "b", 0)).wait().ok());
  });
  ranks.at(1).shutdown();
  ranks.at(0).shutdown();
  EXPECT_EQ(listener->began_, 4);
  EXPECT_EQ(listener->ended_, 4);
  EXPECT_EQ(listener->given_up_, std::vector<std::string>{"0 x"});
}

TEST(ControllerEnd, ClosedGroupsEndItWhereTheProgramHasNot) {
  ControllerRanks ranks({.world = 2});
  const Submitted pending = sum_floats(ranks.at(0), "x", {1});
  (void)ranks.nested(0).close(0);
  EXPECT_EQ(pending.wait().code(), Code::kAborted) << pending.wait().message();
  ranks.run([](int, Controller& to) { to.shutdown(); });
}

// Lines of the log, while one lives.
class LogLines {
 public:
  LogLines() {
    lines().clear();
    set_log_sink([](LogLevel, std::string_view line) {
      std::lock_guard lock(mutex());
      lines().emplace_back(line);
    });
  }
  ~LogLines() { set_log_sink(nullptr); }
  bool has(const std::vector<std::string>& words) const {
    std::lock_guard lock(mutex());
    return std::ranges::any_of(lines(), [&](const std::string& line) {
      return std::ranges::all_of(
          words, [&](const std::string& word) { return line.find(word) != std::string::npos; });
    });
  }

 private:
  static std::vector<std::string>& lines() {
    static std::vector<std::string> all;
    return all;
  }
  static std::mutex& mutex() {
    static std::mutex one;
    return one;
  }
};

TEST(ControllerStall, NamesWhatWaitsAndTheRanksThatMissIt) {
  const LogLines log;
  ControllerRanks ranks({.world = 3}, {.stall_warning = 50 * kMillisecond});
  std::vector<Submitted> waiting;
  waiting.push_back(sum_floats(ranks.at(0), "grad.7", {1}));
  waiting.push_back(sum_floats(ranks.at(1), "grad.7", {1}));
  waiting.push_back(sum_floats(ranks.at(1), "grad.8", {1}));
  EXPECT_TRUE(eventually([&] { return log.has({"allreduce 'grad.7' misses rank 2"}); }));
  EXPECT_TRUE(eventually([&] { return log.has({"allreduce 'grad.8' misses ranks 0, 2"}); }));
  // They are well once the others come.
  for (const int rank : {0, 2}) waiting.push_back(sum_floats(ranks.at(rank), "grad.8", {1}));
  waiting.push_back(sum_floats(ranks.at(2), "grad.7", {1}));
  for (const Submitted& each : waiting) EXPECT_TRUE(each.wait().ok()) << each.wait().message();
}

TEST(ControllerStall, NamesRanksOfAProcessSetByTheirNumbersAmongAll) {
  const LogLines log;
  ControllerRanks ranks({.world = 3}, {.stall_warning = 50 * kMillisecond});
  ranks.run([&](int, Controller& to) { ASSERT_TRUE(add_set(to, {1, 2}).wait().ok()); });
  const Submitted waiting = sum_floats(ranks.at(1), "x", {1}, 1);
  EXPECT_TRUE(eventually([&] { return log.has({"process set 1", "'x' misses rank 2"}); }));
}

TEST(ControllerStall, EndsEverythingWhereTheProgramWantsThat) {
  ControllerRanks ranks({.world = 3},
                        {.stall_warning = 20 * kMillisecond, .stall_shutdown = 200 * kMillisecond});
  const Submitted waiting = sum_floats(ranks.at(0), "x", {1});
  EXPECT_TRUE(says(waiting.wait(), Code::kAborted, {"allreduce 'x' misses ranks 1, 2"}));
  for (const int rank : {1, 2}) {
    EXPECT_TRUE(eventually([&] { return !sum_floats(ranks.at(rank), "y", {1}).refusal.ok(); }));
    EXPECT_TRUE(says(sum_floats(ranks.at(rank), "y", {1}).refusal, Code::kAborted, {"'x'"}));
  }
}

TEST(ControllerStall, IsNoneWhereARankHasJoined) {
  ControllerRanks ranks({.world = 2},
                        {.stall_warning = 20 * kMillisecond, .stall_shutdown = 100 * kMillisecond});
  ranks.run([](int rank, Controller& to) {
    const Time end = monotonic_now() + (rank == 0 ? 0 : 400 * kMillisecond);
    while (monotonic_now() < end) ASSERT_TRUE(sum_floats(to, "x", {1}).wait().ok());
    Request join = request_of(Kind::kJoin, "join", 0);
    join.shapes.clear();
    const Status joined = submit(to, 0, join).wait();
    ASSERT_TRUE(joined.ok()) << joined.message();
  });
}

TEST(ControllerStall, IsNoneWhereAllAreBusy) {
  const LogLines log;
  ControllerRanks ranks({.world = 2}, {.stall_warning = 100 * kMillisecond});
  ranks.run([](int, Controller& to) {
    const Time end = monotonic_now() + 400 * kMillisecond;
    for (bool goes_on = true; goes_on;) {
      // Both do the same number of steps.
      const Submitted made = sum_floats(to, "x", {monotonic_now() < end ? 0.0f : 1.0f});
      ASSERT_TRUE(made.wait().ok());
      goes_on = made.floats()[0] < 2;
    }
  });
  EXPECT_FALSE(log.has({"misses"}));
}

// How often threads of controllers have gone to sleep, and how many operations groups have begun.
struct Turns {
  std::uint64_t sleeps = 0, operations = 0;
  bool operator==(const Turns&) const = default;
};

Turns turns_of(ControllerRanks& ranks) {
  Turns turns;
  for (int rank = 0; rank < ranks.size(); ++rank) turns.sleeps += ranks.at(rank).sleeps();
  for (const GroupReport& each : report_all_groups()) turns.operations += each.sequence;
  return turns;
}

// The same, once nothing has happened for a while: results are told before threads go to sleep.
Turns settled(ControllerRanks& ranks) {
  Turns turns;
  EXPECT_TRUE(eventually([&] {
    turns = turns_of(ranks);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    return turns_of(ranks) == turns;
  }));
  return turns;
}

TEST(ControllerIdle, NothingTurnsWhileNothingIsPending) {
  ControllerRanks ranks({.world = 3});
  const auto step = [](int, Controller& to) { ASSERT_TRUE(sum_floats(to, "x", {1}).wait().ok()); };
  for (int i = 0; i < 20; ++i) ranks.run(step);
  const Turns before = settled(ranks);
  std::this_thread::sleep_for(std::chrono::seconds(1));  // a thousand cycles
  EXPECT_TRUE(turns_of(ranks) == before);
  ranks.run(step);
  EXPECT_GT(turns_of(ranks).sleeps, before.sleeps);
  EXPECT_GT(turns_of(ranks).operations, before.operations);
}

TEST(ControllerIdle, ARankThatWaitsForOthersDoesNotTurnEither) {
  ControllerRanks ranks({.world = 2});
  ranks.run([](int, Controller& to) { ASSERT_TRUE(sum_floats(to, "x", {1}).wait().ok()); });
  const Submitted waiting = sum_floats(ranks.at(0), "x", {1});
  const Turns before = settled(ranks);
  std::this_thread::sleep_for(std::chrono::seconds(1));
  EXPECT_TRUE(turns_of(ranks) == before) << "it has begun a round and sleeps in it";
  EXPECT_TRUE(sum_floats(ranks.at(1), "x", {1}).wait().ok());
  EXPECT_TRUE(waiting.wait().ok());
}

}  // namespace
}  // namespace taco::pg::controller
