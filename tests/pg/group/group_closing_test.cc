// Leaving a group: who was done early hears of a disagreement all the same.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <latch>
#include <memory>
#include <thread>

#include "base/heed.h"
#include "support/eventually.h"
#include "support/pg_values.h"
#include "support/rank_threads.h"

namespace taco::pg {
namespace {

using kernels::Dtype;
using testing::Bytes;
using testing::piece;
using testing::RankThreads;
using testing::same;
using testing::values;

constexpr Duration kLinger = 20 * kSecond;  // by far more than a busy machine's pauses

Status broadcast(Communicator& group, Bytes& data, int root) {
  OperationSpec spec{.kind = Kind::kBroadcast, .dtype = Dtype::kF32, .root = root};
  spec.outputs = {piece(data)};
  Result<OperationPtr> operation = group.start(spec);
  return operation.ok() ? (*operation)->wait(0) : operation.status();
}

std::unique_ptr<Bytes> four() { return std::make_unique<Bytes>(values(Dtype::kF32, 4, 0)); }

Result<OperationPtr> start_sum(Communicator& group, Bytes& data) {
  OperationSpec spec{.kind = Kind::kAllReduce, .dtype = Dtype::kF32};
  spec.inputs = spec.outputs = {piece(data)};
  return group.start(spec);
}

Status sum(Communicator& group) {
  const auto data = four();
  Result<OperationPtr> operation = start_sum(group, *data);
  return operation.ok() ? (*operation)->wait(0) : operation.status();
}

TEST(GroupClosing, ARootThatOnlyLeavesHearsThatItsReceiverDisagrees) {
  RankThreads ranks({.world = 3});
  std::latch root_is_done(1);
  ranks.run_in_group({0, 1, 2}, [&](int rank, Communicator& group) {
    Bytes data = values(Dtype::kF32, rank == 1 ? 5 : 4, 0);
    if (rank != 0) root_is_done.wait();
    const Status status = broadcast(group, data, 0);
    if (rank == 0) root_is_done.count_down();
    EXPECT_EQ(status.ok(), rank == 0 || (rank == 2 && status.ok())) << status.message();
    const Status last = group.close(kLinger);
    if (rank != 0) return;
    EXPECT_EQ(last.code(), Code::kMismatch);
    EXPECT_NE(last.message().find("float32 x 4"), std::string::npos) << last.message();
    EXPECT_NE(last.message().find("float32 x 5"), std::string::npos) << last.message();
    EXPECT_TRUE(group.close(kLinger).ok()) << "told once";
  });
}

TEST(GroupClosing, WhoIsInterruptedWhileItLeavesWaitsNoLonger) {
  RankThreads ranks({.world = 2});
  std::latch has_left(1);
  ranks.run_in_group({0, 1}, [&](int rank, Communicator& group) {
    if (rank == 1) return has_left.wait();
    const auto data = four();
    Result<OperationPtr> operation = start_sum(group, *data);  // to which nobody else comes
    ASSERT_TRUE(operation.ok());
    const Heed heed([] { return Status(Code::kAborted, "enough"); });
    EXPECT_TRUE(group.close(3'600 * kSecond).ok());
    EXPECT_EQ((*operation)->status().code(), Code::kAborted);
    has_left.count_down();
  });
}

TEST(GroupClosing, AReceiverThatIsLateIsWaitedFor) {
  RankThreads ranks({.world = 3});
  std::latch root_leaves(1);
  ranks.run_in_group({0, 1, 2}, [&](int rank, Communicator& group) {
    Bytes data = values(Dtype::kF32, 4, rank == 0 ? 0 : 1);
    // So late that the root is leaving already: that is what this is about.
    if (rank == 2) {
      root_leaves.wait();
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
    }
    EXPECT_TRUE(broadcast(group, data, 0).ok());
    EXPECT_TRUE(same(data, values(Dtype::kF32, 4, 0)));
    const Time begin = monotonic_now();
    if (rank == 0) root_leaves.count_down();
    EXPECT_TRUE(group.close(kLinger).ok());
    const Duration waited = monotonic_now() - begin;
    EXPECT_LT(waited, kLinger / 2) << "all are known to have come, or to have left";
    if (rank == 0) {
      EXPECT_GT(waited, 50 * kMillisecond) << "rank 2 had not come yet";
    }
  });
}

TEST(GroupClosing, AReceiverThatLeavesWithoutHavingComeIsNamed) {
  RankThreads ranks({.world = 2});
  std::latch root_is_done(1);
  ranks.run_in_group({0, 1}, [&](int rank, Communicator& group) {
    Bytes data = values(Dtype::kF32, 4, 0);
    if (rank == 1) {
      root_is_done.wait();
      EXPECT_TRUE(group.close(kLinger).ok());
      return;
    }
    EXPECT_TRUE(broadcast(group, data, 0).ok());
    root_is_done.count_down();
    const Status last = group.close(kLinger);
    EXPECT_EQ(last.code(), Code::kMismatch);
    EXPECT_NE(last.message().find("rank 1 has destroyed the group without"), std::string::npos)
        << last.message();
  });
}

// The processes, and their default group, live on throughout.
TEST(GroupClosing, WhoLeavesOnlyTheGroupIsMissedAtOnceByWhoeverNeedsIt) {
  RankThreads ranks({.world = 3, .timeout = 60 * kSecond});
  ranks.run_in_group({0, 1, 2}, [&](int rank, Communicator& group) {
    EXPECT_TRUE(sum(group).ok());
    if (rank == 2) {
      EXPECT_TRUE(group.close(kLinger).ok());
      return;
    }
    const Status status = sum(group);
    ASSERT_EQ(status.code(), Code::kPeerLost) << status.message();
    ASSERT_NE(status.peer_loss(), nullptr);
    EXPECT_EQ(status.peer_loss()->rank, 2);
    EXPECT_NE(status.message().find("it has left the group"), std::string::npos)
        << status.message();
  });
  ranks.run([](int, Communicator& group) { EXPECT_TRUE(sum(group).ok()); });
}

TEST(GroupClosing, WhoLeavesOnlyTheGroupEndsReceivesAndLargeSends) {
  RankThreads ranks({.world = 2, .timeout = 60 * kSecond});
  for (const bool is_send : {false, true}) {
    for (const bool already_open : {false, true}) {
      std::latch opened(1), left(1);
      ranks.run_in_group({0, 1}, [&](int rank, Communicator& group) {
        EXPECT_TRUE(sum(group).ok());
        if (rank == 1) {
          if (already_open) opened.wait();
          EXPECT_TRUE(group.close(kLinger).ok());
          left.count_down();
          return;
        }
        if (!already_open) left.wait();
        Bytes data(1 << 20);
        OperationSpec spec{
            .kind = is_send ? Kind::kSend : Kind::kRecv, .dtype = Dtype::kU8, .root = 1};
        (is_send ? spec.inputs : spec.outputs) = {piece(data)};
        Result<OperationPtr> operation = group.start(spec);
        opened.count_down();
        const Status status = operation.ok() ? (*operation)->wait(0) : operation.status();
        EXPECT_EQ(status.code(), Code::kPeerLost) << status.message();
      });
    }
  }
}

// Its last message was received; that it left meanwhile is nobody's loss.
TEST(GroupClosing, WhoReceivesAndLeavesFailsNoSend) {
  RankThreads ranks({.world = 2});
  for (int round = 0; round < 50; ++round) {
    ranks.run_in_group({0, 1}, [&](int rank, Communicator& group) {
      Bytes data(round % 2 == 0 ? 8 : 1 << 20);
      OperationSpec spec{
          .kind = rank == 0 ? Kind::kSend : Kind::kRecv, .dtype = Dtype::kU8, .root = 1 - rank};
      (rank == 0 ? spec.inputs : spec.outputs) = {piece(data)};
      Result<OperationPtr> operation = group.start(spec);
      ASSERT_TRUE(operation.ok()) << operation.status().message();
      const Status status = (*operation)->wait(0);
      EXPECT_TRUE(status.ok()) << status.message();
      EXPECT_TRUE(group.close(kLinger).ok());
    });
  }
}

TEST(GroupClosing, NobodyIsWaitedForLongerThanTheCallerLingers) {
  RankThreads ranks({.world = 2});
  auto groups = ranks.make_group({0, 1}, "short");
  Bytes data = values(Dtype::kF32, 4, 0);
  ASSERT_TRUE(broadcast(*groups[0], data, 0).ok());
  const Time begin = monotonic_now();
  EXPECT_TRUE(groups[0]->close(100 * kMillisecond).ok());
  EXPECT_LT(monotonic_now() - begin, kLinger);
}

// Waits, 10 s at most, until what closes by itself has done so, the last step of it included.
bool all_are_gone(const std::vector<std::weak_ptr<Communicator>>& groups) {
  const auto gone = [](const std::weak_ptr<Communicator>& group) { return group.expired(); };
  return testing::eventually([&] { return std::all_of(groups.begin(), groups.end(), gone); });
}

TEST(GroupClosing, WhoClosesWhenIdleLetsWhatIsOpenEnd) {
  RankThreads ranks({.world = 3});
  auto groups = ranks.make_group({0, 1, 2}, "forgotten");
  std::vector<std::unique_ptr<Bytes>> data;
  std::vector<OperationPtr> open;
  std::vector<std::weak_ptr<Communicator>> forgotten;
  for (int rank = 0; rank < 3; ++rank) data.push_back(four());
  for (const int rank : {0, 1}) {
    open.push_back(*start_sum(*groups[rank], *data[rank]));
    groups[rank]->close_when_idle(0);  // as impatient as can be
    EXPECT_FALSE(start_sum(*groups[rank], *data[rank]).ok());
    forgotten.push_back(groups[rank]);
    groups[rank].reset();
  }
  EXPECT_EQ(open[0]->wait(50 * kMillisecond).code(), Code::kTimeout) << "rank 2 has not come";
  open.push_back(*start_sum(*groups[2], *data[2]));
  for (const OperationPtr& operation : open) EXPECT_TRUE(operation->wait(0).ok());
  groups.clear();
  open.clear();
  EXPECT_TRUE(all_are_gone(forgotten));
}

TEST(GroupClosing, AChildEndsWithWhatItBelongsTo) {
  RankThreads ranks({.world = 2});
  const std::uint64_t root = ranks.group(0).options().id;
  const auto callback = ranks.make_group({0, 1}, "callback", {root, root});
  const auto below = ranks.make_group({0, 1}, "in it", {callback[0]->options().id, root});
  std::vector<std::unique_ptr<Bytes>> data;
  for (int i = 0; i < 4; ++i) data.push_back(four());
  const OperationPtr ends[] = {*start_sum(*callback[0], *data[0]), *start_sum(*below[0], *data[1])};
  ranks.run([&](int rank, Communicator& group) {
    EXPECT_TRUE((*start_sum(group, *data[2 + rank]))->wait(0).ok());
    Bytes odd = values(Dtype::kF32, 4 + rank, 0);
    const Status status = (*start_sum(group, odd))->wait(0);
    EXPECT_EQ(status.code(), Code::kMismatch);
  });
  for (const OperationPtr& operation : ends) {
    const Status status = operation->wait(0);
    EXPECT_EQ(status.code(), Code::kMismatch) << status.message();
    EXPECT_NE(status.message().find("'world'"), std::string::npos) << status.message();
  }
  const auto late = ranks.make_group({0, 1}, "late", {root, root});
  EXPECT_EQ(late[0]->error().code(), Code::kMismatch);
}

// The parent, nested itself, is over on one rank and fails on the other: only that one knows.
TEST(GroupClosing, AFailureReachesMembersThatHaveClosedTheNestedParent) {
  RankThreads ranks({.world = 2});
  const std::uint64_t root = ranks.group(0).options().id;
  const auto parent = ranks.make_group({0, 1}, "callback", {root, root});
  const auto child = ranks.make_group({0, 1}, "in it", {parent[0]->options().id, root});
  EXPECT_TRUE(parent[1]->close(kLinger).ok());
  const auto data = four();
  const OperationPtr waits = *start_sum(*child[1], *data);
  parent[0]->abort(Status(Code::kAborted, "enough"));
  EXPECT_EQ(waits->wait(10 * kSecond).code(), Code::kAborted);
  EXPECT_TRUE(waits->done());
}

TEST(GroupClosing, AnAbortOfAGroupOfOneReachesWhatIsNestedInIt) {
  const auto group_of_one = [](std::uint64_t id, const Parent& parent) {
    GroupOptions options;
    options.id = id;
    options.name = "alone";
    options.parent = parent;
    return *Communicator::create(nullptr, options);
  };
  const auto root = group_of_one(71, {});
  const auto before = group_of_one(72, {71, 71});
  const auto other = group_of_one(73, {});
  const auto data = four();
  EXPECT_TRUE((*start_sum(*before, *data))->wait(0).ok());
  root->abort(Status(Code::kAborted, "enough"));
  const auto later = group_of_one(74, {72, 71});
  EXPECT_EQ(start_sum(*before, *data).status().code(), Code::kAborted);
  EXPECT_EQ(start_sum(*later, *data).status().code(), Code::kAborted);
  EXPECT_TRUE((*start_sum(*other, *data))->wait(0).ok());
}

}  // namespace
}  // namespace taco::pg
