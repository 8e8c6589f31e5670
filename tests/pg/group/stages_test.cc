// Operations of several stages, and the exchange of sparse tensors' entries, which is one.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <latch>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "pg/sparse_exchange.h"
#include "support/eventually.h"
#include "support/pg_values.h"
#include "support/rank_threads.h"

namespace taco::pg {
namespace {

using kernels::Dtype;
using testing::Bytes;
using testing::eventually;
using testing::piece;
using testing::RankThreads;
using testing::values;

constexpr std::size_t kIndexBytes = 8, kValueBytes = 12;

// Rank r of call number `call` has (r + call) % 4 entries.
std::int64_t entries_of(int rank, int call) { return (rank + call) % 4; }

std::byte byte_of(int rank, int call, std::size_t i, bool is_value) {
  return static_cast<std::byte>(rank * 31 + call * 7 + i + (is_value ? 128 : 0));
}

std::shared_ptr<SparseExchange> exchange_of(const Communicator& group, int call,
                                            std::int64_t sparse_dim = 1) {
  const GroupOptions& options = group.options();
  const std::int64_t entries = entries_of(options.rank, call);
  const SparseShape shape{.entries = entries, .sparse_dim = sparse_dim};
  auto made = *SparseExchange::create(options.rank, options.world, shape, kIndexBytes, kValueBytes);
  for (std::size_t i = 0; i < entries * kIndexBytes; ++i)
    made->indices(options.rank)[i] = byte_of(options.rank, call, i, false);
  for (std::size_t i = 0; i < entries * kValueBytes; ++i)
    made->values(options.rank)[i] = byte_of(options.rank, call, i, true);
  return made;
}

void expect_entries_of_all(const SparseExchange& exchange, int world, int call) {
  for (int rank = 0; rank < world; ++rank) {
    ASSERT_EQ(exchange.entries(rank), entries_of(rank, call));
    for (std::size_t i = 0; i < exchange.entries(rank) * kIndexBytes; ++i)
      ASSERT_EQ(exchange.indices(rank)[i], byte_of(rank, call, i, false)) << rank << " " << i;
    for (std::size_t i = 0; i < exchange.entries(rank) * kValueBytes; ++i)
      ASSERT_EQ(exchange.values(rank)[i], byte_of(rank, call, i, true)) << rank << " " << i;
  }
}

OperationSpec sum(Bytes& data) {
  OperationSpec spec{.kind = Kind::kAllReduce, .dtype = Dtype::kF32};
  spec.inputs = spec.outputs = {piece(data)};
  return spec;
}

class SparseExchanges : public ::testing::TestWithParam<std::tuple<int, std::uint64_t>> {};

TEST_P(SparseExchanges, BringTheEntriesOfAllToAllBesideOtherOperations) {
  const auto [world, seed] = GetParam();
  SCOPED_TRACE("seed " + std::to_string(seed));
  RankThreads ranks({.world = world, .seed = seed, .ranks_per_host = 3});
  ranks.run([&, world = world](int rank, Communicator& group) {
    constexpr int kCalls = 12;
    std::vector<std::shared_ptr<SparseExchange>> exchanges;
    std::vector<Bytes> dense(kCalls, values(Dtype::kF32, 50, rank));
    std::vector<OperationPtr> operations;
    for (int call = 0; call < kCalls; ++call) {
      exchanges.push_back(exchange_of(group, call));
      operations.push_back(*group.start(exchanges.back()->first_stage()));
      operations.push_back(*group.start(sum(dense[call])));
    }
    for (const OperationPtr& operation : operations) {
      const Status status = operation->wait(0);
      ASSERT_TRUE(status.ok()) << status.message();
    }
    EXPECT_EQ(group.sequence(), 2u * kCalls) << "one number each";
    for (int call = 0; call < kCalls; ++call) expect_entries_of_all(*exchanges[call], world, call);
  });
  EXPECT_TRUE(eventually([&] { return ranks.network().open_requests() == 0; }));
}

INSTANTIATE_TEST_SUITE_P(Worlds, SparseExchanges,
                         ::testing::Combine(::testing::Range(1, 8),
                                            ::testing::Values(0u, 21u, 22u)));

TEST(SparseExchange, OfDifferentShapesFailsOnEveryRankAndTheGroupGoesOn) {
  RankThreads ranks({.world = 3});
  ranks.run([&](int rank, Communicator& group) {
    const auto exchange = exchange_of(group, 0, rank == 1 ? 2 : 1);
    const Status status = (*group.start(exchange->first_stage()))->wait(0);
    EXPECT_EQ(status.code(), Code::kMismatch);
    EXPECT_NE(status.message().find("sparse_dim 2"), std::string::npos) << status.message();
    EXPECT_TRUE(group.error().ok());
    const auto next = exchange_of(group, 1);
    EXPECT_TRUE((*group.start(next->first_stage()))->wait(0).ok());
    expect_entries_of_all(*next, 3, 1);
  });
}

// Two gathers of one number each; `between` decides what comes after the first.
class TwoStages final : public Stages {
 public:
  TwoStages(int world, std::function<Result<bool>()> between)
      : between_(std::move(between)), own_(4), gathered_(world, Bytes(4)) {}
  OperationSpec first_stage(std::shared_ptr<TwoStages> self) {
    OperationSpec spec{.kind = Kind::kAllGather, .dtype = Dtype::kU8};
    spec.inputs = {piece(own_)};
    for (Bytes& one : gathered_) spec.outputs.push_back(piece(one));
    spec.stages = std::move(self);
    return spec;
  }
  Result<bool> next_st(OperationSpec&) override {
    if (++done_ == 2) return false;
    return between_ ? between_() : Result<bool>(true);
  }
  int done() const { return done_; }

 private:
  const std::function<Result<bool>()> between_;
  Bytes own_;
  std::vector<Bytes> gathered_;
  std::atomic<int> done_{0};  // written on the engine
};

struct Call {
  std::shared_ptr<TwoStages> stages;
  OperationPtr operation;
};
Call start(Communicator& group, std::function<Result<bool>()> between = {}, Duration timeout = 0) {
  Call call{std::make_shared<TwoStages>(group.options().world, std::move(between)), nullptr};
  OperationSpec spec = call.stages->first_stage(call.stages);
  spec.timeout = timeout;
  call.operation = *group.start(std::move(spec));
  return call;
}

// From its second stage on nobody hears rank 1.
std::function<Result<bool>()> falls_silent(RankThreads& ranks, int rank) {
  return [&ranks, rank]() -> Result<bool> {
    for (const int other : {0, 2})
      if (rank == 1) ranks.network().silence(1, other);
    return true;
  };
}

TEST(Stages, TheSecondEndsWithItsGroup) {
  RankThreads ranks({.world = 3, .timeout = 60 * kSecond});
  std::vector<Call> calls;
  for (int rank = 0; rank < 3; ++rank)
    calls.push_back(start(ranks.group(rank), falls_silent(ranks, rank)));
  EXPECT_TRUE(eventually([&] { return calls[2].stages->done() == 1; }));
  EXPECT_EQ(calls[2].operation->wait(100 * kMillisecond).code(), Code::kTimeout) << "it goes on";
  ranks.group(0).abort(Status(Code::kAborted, "enough"));
  for (const int rank : {0, 2}) {
    const Status status = calls[rank].operation->wait(10 * kSecond);
    EXPECT_EQ(status.code(), Code::kAborted) << status.message();
    EXPECT_TRUE(calls[rank].operation->done());
  }
}

TEST(Stages, HaveOneDeadline) {
  RankThreads ranks({.world = 3, .timeout = 60 * kSecond});
  std::vector<Call> calls;
  for (int rank = 0; rank < 3; ++rank)
    calls.push_back(start(ranks.group(rank), falls_silent(ranks, rank), kSecond / 2));
  for (const int rank : {0, 2}) {
    const Status status = calls[rank].operation->wait(0);
    EXPECT_EQ(status.code(), Code::kTimeout) << status.message();
    EXPECT_LT(calls[rank].operation->elapsed(), 20 * kSecond);
  }
}

TEST(Stages, OfAnOperationGoOnWhenALaterOneFails) {
  RankThreads ranks({.world = 3, .timeout = 60 * kSecond});
  std::latch failed(2);
  ranks.run([&](int rank, Communicator& group) {
    if (rank == 1) failed.wait();
    const Call first = start(group);
    if (rank != 1) {
      Bytes odd = values(Dtype::kF32, 4 + rank, 0);
      EXPECT_EQ((*group.start(sum(odd)))->wait(0).code(), Code::kMismatch);
      EXPECT_FALSE(first.operation->done());
      failed.count_down();
    }
    const Status status = first.operation->wait(0);
    EXPECT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(first.stages->done(), 2);
  });
}

TEST(Stages, ThatOneRankHasNoMemoryForEndOnAllOfThem) {
  RankThreads ranks({.world = 3, .timeout = 60 * kSecond});
  ranks.run([&](int rank, Communicator& group) {
    const Call call = start(group, [rank]() -> Result<bool> {
      if (rank == 1) return Status(Code::kResource, "no memory for the second stage");
      return true;
    });
    const Status status = call.operation->wait(0);
    EXPECT_NE(status.message().find("no memory for the second stage"), std::string::npos)
        << status.message();
    EXPECT_TRUE(eventually([&] { return !group.error().ok(); })) << "right after that";
  });
}

TEST(Stages, OfWhichOneRankHasFewerAreFoundOut) {
  RankThreads ranks({.world = 2, .timeout = 60 * kSecond});
  ranks.run([&](int rank, Communicator& group) {
    const Call call = start(group, [rank]() -> Result<bool> { return rank == 0; });
    const Status status = call.operation->wait(0);
    EXPECT_EQ(status.code(), rank == 0 ? Code::kMismatch : Code::kOk) << status.message();
  });
}

}  // namespace
}  // namespace taco::pg
