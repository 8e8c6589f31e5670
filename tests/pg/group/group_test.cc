// Life of groups: many at once, opposite orders, thousands in flight, leaving, callbacks.
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <latch>
#include <mutex>
#include <random>
#include <thread>

#include "base/completion_thread.h"
#include "base/heed.h"
#include "base/timeline.h"
#include "pg/execution/trace.h"
#include "support/pg_values.h"
#include "support/rank_threads.h"

namespace taco::pg {
namespace {

using kernels::Dtype;
using testing::Bytes;
using testing::on_threads;
using testing::piece;
using testing::RankThreads;
using testing::reduced;
using testing::same;
using testing::values;

OperationSpec sum(Bytes& data) {
  OperationSpec spec{.kind = Kind::kAllReduce, .dtype = Dtype::kF32};
  spec.inputs = {piece(data)};
  spec.outputs = {piece(data)};
  return spec;
}

Bytes expected_sum(int world, std::size_t count, int salt = 0) {
  std::vector<Bytes> all;
  for (int r = 0; r < world; ++r) all.push_back(values(Dtype::kF32, count, r, salt));
  return reduced(kernels::ReduceOp::kSum, Dtype::kF32, all);
}

TEST(Group, AThousandTinyOperationsAreInFlightAtOnce) {
  RankThreads ranks({.world = 4, .seed = 21});
  ranks.run([&](int rank, Communicator& group) {
    std::vector<Bytes> buffers;
    std::vector<OperationPtr> operations;
    for (int i = 0; i < 1000; ++i) buffers.push_back(values(Dtype::kF32, 3, rank, i));
    for (Bytes& buffer : buffers) operations.push_back(*group.start(sum(buffer)));
    for (int i = 0; i < 1000; ++i) {
      ASSERT_TRUE(operations[i]->wait(0).ok()) << operations[i]->status().message();
      EXPECT_TRUE(same(buffers[i], expected_sum(4, 3, i)));
      EXPECT_EQ(operations[i]->sequence(), static_cast<std::uint64_t>(i + 1));
    }
  });
}

TEST(Group, TwoGroupsMayBeUsedInOppositeOrder) {
  for (const std::uint64_t seed : {0, 1, 2, 3}) {
    RankThreads ranks({.world = 2, .seed = seed});
    auto a = ranks.make_group({0, 1}, "a"), b = ranks.make_group({0, 1}, "b");
    ranks.run([&](int rank, Communicator&) {
      Bytes x = values(Dtype::kF32, 50'000, rank, 1), y = values(Dtype::kF32, 50'000, rank, 2);
      OperationPtr first = *(rank == 0 ? a : b)[rank]->start(sum(rank == 0 ? x : y));
      OperationPtr second = *(rank == 0 ? b : a)[rank]->start(sum(rank == 0 ? y : x));
      EXPECT_TRUE(second->wait(0).ok());
      EXPECT_TRUE(first->wait(0).ok());
      EXPECT_TRUE(same(x, expected_sum(2, 50'000, 1)));
      EXPECT_TRUE(same(y, expected_sum(2, 50'000, 2)));
    });
  }
}

TEST(Group, OverlappingGroupsAreUsedFromSeveralThreads) {
  RankThreads ranks({.world = 4, .seed = 77});
  const std::vector<std::vector<int>> members = {{0, 1}, {1, 2, 3}, {0, 2}, {0, 1, 2, 3}};
  std::vector<std::vector<std::shared_ptr<Communicator>>> groups;
  for (const auto& list : members) groups.push_back(ranks.make_group(list, "overlapping"));
  std::vector<std::pair<int, int>> jobs;
  for (int g = 0; g < 4; ++g)
    for (int r = 0; r < static_cast<int>(members[g].size()); ++r) jobs.emplace_back(g, r);
  on_threads(static_cast<int>(jobs.size()), [&](int i) {
    const auto [g, rank] = jobs[i];
    const int world = static_cast<int>(members[g].size());
    for (int n = 0; n < 50; ++n) {
      Bytes data = values(Dtype::kF32, 700, rank, n);
      OperationPtr operation = *groups[g][rank]->start(sum(data));
      ASSERT_TRUE(operation->wait(0).ok()) << operation->status().message();
      EXPECT_TRUE(same(data, expected_sum(world, 700, n)));
    }
  });
}

TEST(Group, TwoHundredGroupsComeAndGo) {
  RankThreads ranks({.world = 2});
  for (int i = 0; i < 200; ++i) {
    ranks.run_in_group({0, 1}, [&](int rank, Communicator& group) {
      Bytes data = values(Dtype::kF32, 8, rank);
      EXPECT_TRUE((*group.start(sum(data)))->wait(0).ok());
      (void)group.close(kSecond);
      (void)group.close(kSecond);
      EXPECT_EQ(group.start(sum(data)).status().code(), Code::kAborted);
    });
  }
}

TEST(Group, ADestroyedGroupEndsItsOpenOperations) {
  RankThreads ranks({.world = 2});
  Bytes data = values(Dtype::kF32, 8, 0);
  OperationPtr operation = *ranks.group(0).start(sum(data));
  (void)ranks.group(0).close(10 * kMillisecond);
  EXPECT_TRUE(operation->done());
  EXPECT_EQ(operation->status().code(), Code::kAborted);
  EXPECT_NE(operation->status().message().find("destroyed"), std::string::npos);
}

TEST(Group, AbortReachesEveryMember) {
  for (const std::uint64_t seed : {0, 5, 6}) {
    RankThreads ranks({.world = 3, .seed = seed});
    ranks.run([&](int rank, Communicator& group) {
      Bytes data = values(Dtype::kF32, 100'000, rank);
      if (rank == 2) {
        group.abort(Status(Code::kAborted, "the user pressed a key"));
        group.abort(Status(Code::kAborted, "again"));
      } else {
        auto operation = group.start(sum(data));
        const Status status = operation.ok() ? (*operation)->wait(0) : operation.status();
        EXPECT_EQ(status.code(), Code::kAborted);
        EXPECT_NE(status.message().find("the user pressed a key"), std::string::npos);
        EXPECT_NE(status.message().find("rank 2"), std::string::npos);
      }
      EXPECT_FALSE(group.error().ok());
      EXPECT_FALSE(group.start(sum(data)).ok());
    });
  }
}

TEST(Group, CallbacksMayStartOperationsAndWaitForThem) {
  RankThreads ranks({.world = 3, .seed = 8});
  std::atomic<int> wrong{0};
  ranks.run([&](int rank, Communicator& group) {
    constexpr int kDepth = 6;
    std::mutex mutex;
    std::condition_variable done;
    int finished = 0;
    std::vector<Bytes> buffers;
    for (int i = 0; i <= kDepth; ++i) buffers.push_back(values(Dtype::kF32, 16, rank, i));
    std::function<void(int)> nest = [&](int depth) {
      if (depth < kDepth) {
        OperationPtr operation = *group.start(sum(buffers[depth + 1]));
        operation->on_complete([&, depth] { nest(depth + 1); });
        if (!operation->wait(0).ok()) ++wrong;
      }
      std::lock_guard lock(mutex);
      ++finished;
      done.notify_one();
    };
    OperationPtr operation = *group.start(sum(buffers[0]));
    operation->on_complete([&] { nest(0); });
    std::unique_lock lock(mutex);
    ASSERT_TRUE(done.wait_for(lock, std::chrono::seconds(20), [&] { return finished > kDepth; }));
    for (int i = 0; i <= kDepth; ++i) EXPECT_TRUE(same(buffers[i], expected_sum(3, 16, i)));
  });
  EXPECT_EQ(wrong, 0);
}

TEST(Group, CallbacksBlockedElsewhereDoNotHoldUpOthers) {
  RankThreads ranks({.world = 2});
  std::mutex mutex;
  std::condition_variable changed;
  bool second_ran = false;
  ranks.run([&](int rank, Communicator& group) {
    Bytes data = values(Dtype::kF32, 4, rank);
    OperationPtr first = *group.start(sum(data));
    ASSERT_TRUE(first->wait(0).ok());
    if (rank != 0) return;
    std::atomic<int> ended{0};
    first->on_complete([&] {
      std::unique_lock lock(mutex);
      EXPECT_TRUE(changed.wait_for(lock, std::chrono::seconds(20), [&] { return second_ran; }));
      ++ended;
    });
    first->on_complete([&] {
      std::lock_guard lock(mutex);
      second_ran = true;
      changed.notify_all();
      ++ended;
    });
    while (ended < 2) std::this_thread::yield();
  });
}

TEST(Group, TheLastGroupTakesTheCompletionThreadsWithIt) {
  {
    RankThreads ranks({.world = 2});
    ranks.run([&](int rank, Communicator& group) {
      Bytes data = values(Dtype::kF32, 4, rank);
      OperationPtr operation = *group.start(sum(data));
      std::atomic<bool> ran{false};
      operation->on_complete([&] { ran = true; });
      ASSERT_TRUE(operation->wait(0).ok());
      while (!ran) std::this_thread::yield();
    });
    EXPECT_GT(completion::threads(), 0);
  }
  EXPECT_EQ(completion::threads(), 0);
}

TEST(Group, ACallbackMayDestroyTheLastGroup) {
  ASSERT_EQ(completion::threads(), 0);
  std::atomic<bool> destroyed{false};
  auto group = *Communicator::create(nullptr, {.name = "alone"});
  Bytes data = values(Dtype::kF32, 4, 0);
  OperationPtr operation = *group->start(sum(data));
  operation->on_complete([&, group = std::move(group)] {
    (void)group->close(kSecond);
    destroyed = true;
  });
  while (!destroyed) std::this_thread::yield();
  completion::join();  // it could not join itself
  EXPECT_EQ(completion::threads(), 0);
}

TEST(Group, ACallbackThatOutlastsTheLastGroupIsJoinedLater) {
  ASSERT_EQ(completion::threads(), 0);
  std::atomic<bool> goes_on{false}, ended{false};
  {
    auto group = *Communicator::create(nullptr, {.name = "alone"});
    Bytes data = values(Dtype::kF32, 4, 0);
    (*group->start(sum(data)))->on_complete([&] {
      while (!goes_on) std::this_thread::yield();
      ended = true;
    });
    (void)group->close(kSecond);  // waits for a while, then leaves it
  }
  EXPECT_GT(completion::threads(), 0);
  goes_on = true;
  completion::join();
  EXPECT_TRUE(ended);
  EXPECT_EQ(completion::threads(), 0);
}

TEST(Group, DumpSaysWhatIsWaitedFor) {
  RankThreads ranks({.world = 3});
  Bytes data = values(Dtype::kF32, 100'000, 0);
  OperationPtr operation = *ranks.group(0).start(sum(data));
  const std::string text = ranks.group(0).dump();
  EXPECT_NE(text.find("all_reduce SUM float32 x 100000 (sequence 1)"), std::string::npos) << text;
  EXPECT_NE(text.find("waiting for rank"), std::string::npos) << text;
  EXPECT_NE(dump_all_groups().find(text.substr(0, 20)), std::string::npos);
  ranks.group(0).abort(Status(Code::kAborted, "enough"));
  EXPECT_FALSE(operation->wait(0).ok());
}

TEST(Group, AReportTellsHowFarARankHasComeAndWhatItWaitsFor) {
  RankThreads ranks({.world = 3});
  Bytes data = values(Dtype::kF32, 1000, 0);
  OperationPtr operation = *ranks.group(0).start(sum(data));
  const GroupReport waits = ranks.group(0).report(), idle = ranks.group(1).report();
  EXPECT_EQ(waits.rank, 0);
  EXPECT_EQ(waits.world, 3);
  EXPECT_EQ(waits.sequence, 1);
  ASSERT_TRUE(waits.open.has_value());
  ASSERT_EQ(waits.open->size(), 1);
  EXPECT_EQ(waits.open->front().sequence, 1);
  EXPECT_NE(waits.open->front().text.find("waiting for rank"), std::string::npos);
  EXPECT_EQ(idle.sequence, 0);
  ASSERT_TRUE(idle.open.has_value());
  EXPECT_TRUE(idle.open->empty());
  ranks.group(0).abort(Status(Code::kAborted, "enough"));
  EXPECT_FALSE(operation->wait(0).ok());
  EXPECT_EQ(ranks.group(0).report().error.code(), Code::kAborted);
}

TEST(Group, TheTraceKnowsOperationsAndWaits) {
  timeline::enable(true);
  {
    RankThreads ranks({.world = 2});
    ranks.run([&](int rank, Communicator& group) {
      Bytes data = values(Dtype::kF32, 10'000, rank);
      ASSERT_TRUE((*group.start(sum(data)))->wait(0).ok());
    });
  }
  timeline::enable(false);
  const std::string timeline = timeline::chrome_json();
  EXPECT_NE(timeline.find("taco:all_reduce"), std::string::npos);
  EXPECT_NE(timeline.find("from rank 1"), std::string::npos);
  EXPECT_NE(trace::flight_recorder_json().find("\"state\":\"completed\""), std::string::npos);
  bool counted = false;
  for (const AlgorithmStats& row : algorithm_stats())
    counted |= row.name.starts_with("all_reduce/") && row.bytes >= 80'000;
  EXPECT_TRUE(counted);
}

TEST(Group, MonitoredBarrierPassesOrNamesTheMissing) {
  RankThreads ranks({.world = 4, .seed = 2});
  ranks.run([&](int, Communicator& group) {
    for (int i = 0; i < 5; ++i) {
      const Status status = group.monitored_barrier(10 * kSecond, false);
      EXPECT_TRUE(status.ok()) << status.message();
    }
  });
  ranks.run([&](int rank, Communicator& group) {
    if (rank == 1 || rank == 3) return;
    // The verdict is rank 0's: rank 2 has to come in its time, and waits for it however late it is.
    const Status status = group.monitored_barrier((rank == 0 ? 3 : 20) * kSecond, true);
    EXPECT_FALSE(status.ok());
    EXPECT_NE(status.message().find("Ranks 1, 3 failed to pass monitoredBarrier"),
              std::string::npos)
        << status.message();
    if (rank == 2) {
      EXPECT_NE(status.message().find("Rank 2 successfully reached monitoredBarrier"),
                std::string::npos);
    }
  });
}

TEST(Group, WhoIsInterruptedInAMonitoredBarrierHasComeAllTheSame) {
  for (const int first : {0, 2}) {
    RankThreads ranks({.world = 3});
    std::latch interrupted(1);
    ranks.run([&](int rank, Communicator& group) {
      if (rank != first) {
        interrupted.wait();
        const Status status = group.monitored_barrier(20 * kSecond, false);
        EXPECT_TRUE(status.ok()) << status.message();
        return;
      }
      const Heed heed([] { return Status(Code::kAborted, "enough"); });
      EXPECT_EQ(group.monitored_barrier(20 * kSecond, false).message(), "enough");
      interrupted.count_down();
    });
    ranks.run([&](int, Communicator& group) {
      EXPECT_TRUE(group.monitored_barrier(20 * kSecond, false).ok());
    });
  }
}

TEST(Group, AloneEverythingCompletesAtOnce) {
  auto group = *Communicator::create(nullptr, {.name = "alone"});
  Bytes data = values(Dtype::kF32, 5, 0);
  const Bytes before = data;
  OperationPtr operation = *group->start(sum(data));
  EXPECT_TRUE(operation->done());
  EXPECT_TRUE(same(data, before));
  EXPECT_TRUE(group->monitored_barrier(kSecond, true).ok());
  (void)group->close(0);
  EXPECT_EQ(group->start(sum(data)).status().code(), Code::kAborted);
}

}  // namespace
}  // namespace taco::pg
