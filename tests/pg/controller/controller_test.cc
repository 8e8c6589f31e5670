// Results of named operations: every kind, in place and not, in whatever order the ranks submit.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <numeric>
#include <random>
#include <thread>

#include "pg/controller/response_runner.h"
#include "support/controller_ranks.h"

namespace taco::pg::controller {
namespace {

using kernels::Dtype;
using kernels::ReduceOp;
using testing::bytes_of;
using testing::ControllerRanks;
using testing::reduced;
using testing::request_of;
using testing::RequestMemory;
using testing::same;
using testing::says;
using testing::submit;
using testing::submit_floats;
using testing::Submitted;
using testing::sum_floats;
using testing::values;
using Floats = std::vector<float>;

constexpr std::size_t kCount = 777;

Submitted submit_values(Controller& to, Kind kind, const std::string& name, Dtype dtype,
                        ReduceOp op, int rank, bool in_place) {
  Request request = request_of(kind, name, kCount);
  request.dtype = dtype;
  request.op = op;
  return submit(to, 0, request,
                std::make_shared<RequestMemory>(
                    std::vector<testing::Bytes>{values(dtype, kCount, rank)}, in_place, dtype));
}

class ControllerWorlds : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Worlds, ControllerWorlds, ::testing::Values(1, 2, 3, 4));

TEST_P(ControllerWorlds, EveryReductionOfEveryTypeIsThatOfAllRanks) {
  const int world = GetParam();
  ControllerRanks ranks({.world = world});
  for (const Dtype dtype : {Dtype::kI32, Dtype::kI64, Dtype::kF16, Dtype::kF32, Dtype::kF64}) {
    for (const ReduceOp op :
         {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
      std::vector<testing::Bytes> operands;
      for (int rank = 0; rank < world; ++rank) operands.push_back(values(dtype, kCount, rank));
      const testing::Bytes expected = reduced(op, dtype, operands);
      for (const bool in_place : {false, true}) {
        ranks.run([&](int rank, Controller& to) {
          const Submitted made =
              submit_values(to, Kind::kAllReduce, "x", dtype, op, rank, in_place);
          ASSERT_TRUE(made.wait().ok()) << made.wait().message();
          EXPECT_TRUE(same(made.memory->result(), expected))
              << kernels::name_of(dtype) << " " << kernels::name_of(op);
          if (!in_place) {
            EXPECT_TRUE(same(made.memory->given(), values(dtype, kCount, rank)));
          }
        });
      }
    }
  }
}

TEST_P(ControllerWorlds, FactorsMultiplyBeforeAndAfterTheSum) {
  const int world = GetParam();
  ControllerRanks ranks({.world = world});
  for (const bool in_place : {false, true}) {
    ranks.run([&](int rank, Controller& to) {
      Request request = request_of(Kind::kAllReduce, "x", 0);
      request.prescale = 0.5;
      request.postscale = 4.0;
      const Submitted made = submit_floats(to, 0, request, {float(rank + 1), 6.0f}, in_place);
      ASSERT_TRUE(made.wait().ok()) << made.wait().message();
      const float sum = float(world * (world + 1)) / 2;
      EXPECT_EQ(made.floats(), (Floats{2 * sum, 12.0f * float(world)}));
      if (!in_place) {
        EXPECT_TRUE(same(made.memory->given(), bytes_of({float(rank + 1), 6.0f})));
      }
    });
  }
}

TEST_P(ControllerWorlds, IntegersAreScaledInDoubleAndCutOff) {
  ControllerRanks ranks({.world = GetParam()});
  ranks.run([&](int, Controller& to) {
    Request request = request_of(Kind::kAllReduce, "x", 2);
    request.dtype = Dtype::kI32;
    request.prescale = 0.3;
    const std::int32_t given[] = {10, -7};
    testing::Bytes bytes(sizeof given);
    std::memcpy(bytes.data(), given, sizeof given);
    const Submitted made = submit(
        to, 0, request,
        std::make_shared<RequestMemory>(std::vector<testing::Bytes>{bytes}, false, Dtype::kI32));
    ASSERT_TRUE(made.wait().ok()) << made.wait().message();
    std::int32_t sums[2];
    std::memcpy(sums, made.memory->result().data(), sizeof sums);
    EXPECT_EQ(sums[0], 3 * GetParam());
    EXPECT_EQ(sums[1], -2 * GetParam());
  });
}

TEST_P(ControllerWorlds, AGroupedRequestReducesEachOfItsTensors) {
  ControllerRanks ranks({.world = GetParam()});
  ranks.run([&](int rank, Controller& to) {
    Request request = request_of(Kind::kAllReduce, "group", 0);
    request.op = ReduceOp::kAvg;
    request.shapes = {{2}, {0, 3}, {}, {1, 1}};
    const auto memory = std::make_shared<RequestMemory>(std::vector<testing::Bytes>{
        bytes_of({float(rank), 1}), bytes_of({}), bytes_of({5}), bytes_of({float(2 * rank)})});
    const Submitted made = submit(to, 0, request, memory);
    ASSERT_TRUE(made.wait().ok()) << made.wait().message();
    const float mean = float(GetParam() - 1) / 2;
    EXPECT_EQ(made.floats(0), (Floats{mean, 1}));
    EXPECT_EQ(made.floats(1), Floats{});
    EXPECT_EQ(made.floats(2), Floats{5});
    EXPECT_EQ(made.floats(3), Floats{2 * mean});
  });
}

TEST_P(ControllerWorlds, AnAllGatherPutsRowsOfAnyNumberTogether) {
  const int world = GetParam();
  ControllerRanks ranks({.world = world});
  for (int round = 0; round < 3; ++round) {  // the second time by the cache, the third with others
    const auto rows_of = [&](int rank) { return (rank + (round == 2 ? 1 : 0)) % world; };
    ranks.run([&](int rank, Controller& to) {
      Request request = request_of(Kind::kAllGather, "x", 0);
      request.shapes = {{rows_of(rank), 2}};
      const Floats own(static_cast<std::size_t>(2 * rows_of(rank)), float(rank));
      const Submitted made =
          submit(to, 0, request,
                 std::make_shared<RequestMemory>(std::vector<testing::Bytes>{bytes_of(own)}));
      ASSERT_TRUE(made.wait().ok()) << made.wait().message();
      Floats expected;
      for (int r = 0; r < world; ++r)
        expected.insert(expected.end(), static_cast<std::size_t>(2 * rows_of(r)), float(r));
      EXPECT_EQ(made.floats(), expected);
      EXPECT_EQ(made.memory->shape(), (Shape{std::int64_t(expected.size() / 2), 2}));
    });
  }
}

TEST_P(ControllerWorlds, ABroadcastBringsTheRootsTensor) {
  const int world = GetParam();
  ControllerRanks ranks({.world = world});
  for (int root = 0; root < world; ++root) {
    for (const bool in_place : {false, true}) {
      ranks.run([&](int rank, Controller& to) {
        Request request = request_of(Kind::kBroadcast, "x", 0);
        request.root = root;
        const Submitted made = submit_floats(to, 0, request, {float(rank), 8}, in_place);
        ASSERT_TRUE(made.wait().ok()) << made.wait().message();
        EXPECT_EQ(made.floats(), (Floats{float(root), 8}));
      });
    }
  }
}

TEST_P(ControllerWorlds, AnAllToAllSendsTheRowsThatItsSplitsSay) {
  const int world = GetParam();
  ControllerRanks ranks({.world = world});
  const auto rows_between = [](int from, int to) { return (from + 2 * to) % 3; };
  ranks.run([&](int rank, Controller& to) {
    Request request = request_of(Kind::kAllToAll, "x", 0);
    Floats own;
    for (int peer = 0; peer < world; ++peer) {
      request.splits.push_back(rows_between(rank, peer));
      own.insert(own.end(), static_cast<std::size_t>(rows_between(rank, peer)),
                 float(10 * rank + peer));
    }
    const Submitted made = submit_floats(to, 0, request, own);
    ASSERT_TRUE(made.wait().ok()) << made.wait().message();
    Floats expected;
    std::vector<std::int64_t> received;
    for (int peer = 0; peer < world; ++peer) {
      received.push_back(rows_between(peer, rank));
      expected.insert(expected.end(), static_cast<std::size_t>(received.back()),
                      float(10 * peer + rank));
    }
    EXPECT_EQ(made.floats(), expected);
    EXPECT_EQ(made.outcome().received_splits, received);
  });
}

TEST_P(ControllerWorlds, AReduceScatterGivesTheFirstRanksTheRowsThatAreLeftOver) {
  const int world = GetParam();
  ControllerRanks ranks({.world = world});
  for (const double factor : {1.0, 3.0}) {
    for (const std::int64_t rows : {0, 1, 3, 4, 11}) {
      ranks.run([&](int rank, Controller& to) {
        Request request = request_of(Kind::kReduceScatter, "x", rows);
        request.prescale = factor;
        request.postscale = 0.5;
        Floats own(static_cast<std::size_t>(rows));
        std::iota(own.begin(), own.end(), float(rank));
        const Submitted made = submit_floats(to, 0, request, own);
        ASSERT_TRUE(made.wait().ok()) << made.wait().message();
        std::int64_t first = 0;
        for (int r = 0; r < rank; ++r) first += share_of_rows(rows, r, world);
        Floats expected;
        for (std::int64_t row = first; row < first + share_of_rows(rows, rank, world); ++row) {
          const float sum = float(row * world) + float(world * (world - 1)) / 2;
          expected.push_back(sum * float(factor) / 2);
        }
        EXPECT_EQ(made.floats(), expected);
        EXPECT_TRUE(same(made.memory->given(), bytes_of(own)));
      });
    }
  }
}

TEST(ControllerShares, AreAllRowsAndTheFirstRanksHaveTheMost) {
  EXPECT_EQ(share_of_rows(11, 0, 4), 3);
  EXPECT_EQ(share_of_rows(11, 2, 4), 3);
  EXPECT_EQ(share_of_rows(11, 3, 4), 2);
  EXPECT_EQ(share_of_rows(0, 0, 4), 0);
  EXPECT_EQ(share_of_rows(2, 2, 4), 0);
}

TEST(Controller, ABarrierEndsOnNoRankBeforeAllHaveCome) {
  ControllerRanks ranks({.world = 3});
  std::atomic<int> come{0};
  ranks.run([&](int rank, Controller& to) {
    for (int round = 1; round <= 20; ++round) {
      if (rank == round % 3) std::this_thread::sleep_for(std::chrono::milliseconds(2));
      ++come;
      ASSERT_TRUE(submit(to, 0, request_of(Kind::kBarrier, "b", 0)).wait().ok());
      EXPECT_GE(come.load(), 3 * round);
    }
  });
}

TEST(Controller, ABarrierIsIndependentOfWhatIsPending) {
  ControllerRanks ranks({.world = 2});
  ranks.run([&](int rank, Controller& to) {
    const Submitted lonely = sum_floats(to, "only " + std::to_string(rank), {1});
    EXPECT_TRUE(submit(to, 0, request_of(Kind::kBarrier, "b", 0)).wait().ok());
    EXPECT_FALSE(lonely.submission->done());
    EXPECT_FALSE(lonely.submission->wait_until(monotonic_now()));
    const Submitted other = sum_floats(to, "only " + std::to_string(1 - rank), {2});
    EXPECT_TRUE(lonely.wait().ok());
    EXPECT_TRUE(other.wait().ok());
    EXPECT_EQ(lonely.floats(), Floats{3});
  });
}

class ControllerOrders : public ::testing::TestWithParam<unsigned> {};
INSTANTIATE_TEST_SUITE_P(Seeds, ControllerOrders, ::testing::Range(0u, 8u));

TEST_P(ControllerOrders, RanksMaySubmitInWhateverOrder) {
  constexpr int kNames = 60;
  ControllerRanks ranks({.world = 3, .seed = GetParam()}, {.fusion_bytes = 200});
  ranks.run([&](int rank, Controller& to) {
    std::mt19937 random(100 * GetParam() + static_cast<unsigned>(rank));
    for (int step = 0; step < 4; ++step) {
      std::vector<int> order(kNames);
      std::iota(order.begin(), order.end(), 0);
      std::shuffle(order.begin(), order.end(), random);
      std::vector<Submitted> made(kNames);
      for (const int name : order) {
        const Floats own(static_cast<std::size_t>(name % 7), float(name + rank + step));
        made[name] = sum_floats(to, "grad." + std::to_string(name), own);
      }
      for (int name = 0; name < kNames; ++name) {
        ASSERT_TRUE(made[name].wait().ok()) << made[name].wait().message();
        const Floats expected(static_cast<std::size_t>(name % 7), float(3 * (name + step) + 3));
        EXPECT_EQ(made[name].floats(), expected) << "seed " << GetParam();
      }
    }
  });
}

TEST_P(ControllerOrders, SeveralThreadsSubmitAtOnce) {
  constexpr int kThreads = 4, kNames = 25;
  ControllerRanks ranks({.world = 2, .seed = GetParam()});
  ranks.run([&](int rank, Controller& to) {
    testing::on_threads(kThreads, [&](int thread) {
      for (int i = 0; i < kNames; ++i) {
        const std::string name = std::to_string(thread) + "/" + std::to_string(i % 5);
        const Submitted made = sum_floats(to, name, {float(rank), float(thread), float(i)});
        ASSERT_TRUE(made.wait().ok()) << made.wait().message();
        EXPECT_EQ(made.floats(), (Floats{1, float(2 * thread), float(2 * i)}));
      }
    });
  });
}

// Counts responses, and what is done about them.
class CountingListener final : public Listener {
 public:
  void negotiating(int, const Request&, Time) override { ++negotiating_; }
  void agreed(int, const Response& response, Time) override {
    ++agreed_;
    requests_ += static_cast<int>(response.requests.size());
  }
  void activity(int, const Response&, const char* what, Time) override {
    if (std::string(what) == "MEMCPY_IN_FUSION_BUFFER") ++copies_;
  }
  void ended(int, const Response&, Time) override { ++ended_; }
  void given_up(int, const Request&, Time) override {}
  void cycle(Time) override { ++cycles_; }
  std::atomic<int> negotiating_{0}, agreed_{0}, requests_{0}, copies_{0}, ended_{0}, cycles_{0};
};

TEST(Controller, SmallRequestsAreFusedUpToTheThresholdAndAListenerHearsOfAll) {
  constexpr int kNames = 100;
  ControllerRanks ranks({.world = 2});
  std::vector<std::shared_ptr<CountingListener>> listeners;
  for (int rank = 0; rank < 2; ++rank) {
    listeners.push_back(std::make_shared<CountingListener>());
    ASSERT_TRUE(ranks.at(rank).set_listener(listeners.back()).ok());
  }
  // One rank has submitted everything before the other comes: it is one round's.
  std::vector<std::vector<Submitted>> made(2);
  for (int rank = 0; rank < 2; ++rank) {
    for (int i = 0; i < kNames; ++i) {
      made[rank].push_back(
          sum_floats(ranks.at(rank), std::to_string(i), Floats(10, float(rank + i))));
    }
  }
  for (int rank = 0; rank < 2; ++rank) {
    for (int i = 0; i < kNames; ++i) {
      ASSERT_TRUE(made[rank][i].wait().ok()) << made[rank][i].wait().message();
      EXPECT_EQ(made[rank][i].floats(), Floats(10, float(2 * i + 1)));
    }
  }
  ranks.run([](int, Controller& to) { to.shutdown(); });
  for (const auto& listener : listeners) {
    EXPECT_EQ(listener->negotiating_, kNames);
    EXPECT_EQ(listener->requests_, kNames);
    EXPECT_LT(listener->agreed_, kNames / 2) << "fused";
    EXPECT_GE(listener->copies_, 1);
    EXPECT_EQ(listener->ended_, listener->agreed_);
    EXPECT_GE(listener->cycles_, 1);
  }
}

TEST(Controller, WithoutAThresholdNothingIsFused) {
  ControllerRanks ranks({.world = 2}, {.fusion_bytes = 0});
  const auto listener = std::make_shared<CountingListener>();
  ASSERT_TRUE(ranks.at(0).set_listener(listener).ok());
  ranks.run([](int, Controller& to) {
    std::vector<Submitted> made;
    for (int i = 0; i < 10; ++i) made.push_back(sum_floats(to, std::to_string(i), {1}));
    for (const Submitted& each : made) EXPECT_TRUE(each.wait().ok());
    to.shutdown();
  });
  EXPECT_EQ(listener->agreed_, 10);
  EXPECT_EQ(listener->copies_, 0) << "used where they lie";
}

// The combination of two vectors, in double.
Floats adasum_of_two(const Floats& a, const Floats& b) {
  double ab = 0, aa = 0, bb = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    ab += double{a[i]} * b[i];
    aa += double{a[i]} * a[i];
    bb += double{b[i]} * b[i];
  }
  Floats sum;
  for (std::size_t i = 0; i < a.size(); ++i) {
    sum.push_back(static_cast<float>((aa > 0 ? 1 - ab / aa / 2 : 1) * a[i] +
                                     (bb > 0 ? 1 - ab / bb / 2 : 1) * b[i]));
  }
  return sum;
}

Floats adasum_of(std::vector<Floats> all) {
  std::size_t paired = 1;
  while (2 * paired <= all.size()) paired *= 2;
  for (std::size_t extra = paired; extra < all.size(); ++extra)
    all[extra - paired] = adasum_of_two(all[extra - paired], all[extra]);
  all.resize(paired);
  for (std::size_t distance = 1; distance < paired; distance *= 2) {
    for (std::size_t i = 0; i + distance < paired; i += 2 * distance)
      all[i] = adasum_of_two(all[i], all[i + distance]);
  }
  return all[0];
}

class ControllerAdasum : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Worlds, ControllerAdasum, ::testing::Values(1, 2, 3, 4, 5, 8));

TEST_P(ControllerAdasum, CombinesEachTensorByItselfAndIsTheSameOnAllRanks) {
  const int world = GetParam();
  ControllerRanks ranks({.world = world});
  std::vector<Floats> first, second;
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  for (int rank = 0; rank < world; ++rank) {
    first.emplace_back(1000);
    second.emplace_back(3);
    for (float& each : first.back()) each = normal(random);
    for (float& each : second.back()) each = normal(random);
  }
  std::vector<testing::Bytes> results(static_cast<std::size_t>(world));
  ranks.run([&](int rank, Controller& to) {
    Request request = request_of(Kind::kAdasum, "x", 0);
    request.shapes = {{1000}, {3}};
    const auto memory = std::make_shared<RequestMemory>(
        std::vector<testing::Bytes>{bytes_of(first[rank]), bytes_of(second[rank])});
    const Submitted made = submit(to, 0, request, memory);
    ASSERT_TRUE(made.wait().ok()) << made.wait().message();
    const Floats big = adasum_of(first), small = adasum_of(second);
    const Floats got_big = made.floats(0), got_small = made.floats(1);
    for (std::size_t i = 0; i < big.size(); ++i) EXPECT_NEAR(got_big[i], big[i], 1e-5f);
    for (std::size_t i = 0; i < small.size(); ++i) EXPECT_NEAR(got_small[i], small[i], 1e-5f);
    results[rank] = made.memory->result(0);
  });
  for (const testing::Bytes& each : results) EXPECT_TRUE(same(each, results[0]));
}

TEST(AdasumOfTwo, OfEqualGradientsIsTheirMeanAndOfOrthogonalOnesTheirSum) {
  ControllerRanks ranks({.world = 2});
  for (const Dtype dtype : {Dtype::kF16, Dtype::kBF16, Dtype::kF32, Dtype::kF64}) {
    ranks.run([&](int rank, Controller& to) {
      Request request = request_of(Kind::kAdasum, "x", 0);
      request.dtype = dtype;
      request.shapes = {{1000}, {1000}};
      std::vector<testing::Bytes> given(2, values(dtype, 1000, 0));
      testing::Bytes half(given[1].size());  // zeros where the other rank has values
      const std::size_t from = rank == 0 ? 0 : half.size() / 2;
      std::memcpy(half.data() + from, given[1].data() + from, half.size() / 2);
      given[1] = half;
      const Submitted made =
          submit(to, 0, request, std::make_shared<RequestMemory>(given, false, dtype));
      ASSERT_TRUE(made.wait().ok()) << made.wait().message();
      EXPECT_TRUE(same(made.memory->result(0), values(dtype, 1000, 0)));
      EXPECT_TRUE(same(made.memory->result(1), values(dtype, 1000, 0)));
    });
  }
}

TEST(Controller, ARankThatHasJoinedGivesZerosUntilAllHave) {
  ControllerRanks ranks({.world = 3});
  for (int round = 0; round < 3; ++round) {
    ranks.run([&](int rank, Controller& to) {
      // Rank r has r + 1 steps of data; the last one to join is rank 2.
      for (int step = 0; step <= rank; ++step) {
        Request request = request_of(Kind::kAllReduce, "x", 0);
        request.op = step % 2 == 0 ? ReduceOp::kSum : ReduceOp::kAvg;
        const Submitted made = submit_floats(to, 0, request, {3, 6});
        ASSERT_TRUE(made.wait().ok()) << made.wait().message();
        const float there = float(3 - step);
        const float factor = step % 2 == 0 ? there : there / 3;
        EXPECT_EQ(made.floats(), (Floats{3 * factor, 6 * factor})) << "step " << step;
      }
      if (rank == 2 && round == 1) {
        const Submitted gather = submit_floats(to, 0, request_of(Kind::kAllGather, "g", 0), {1});
        EXPECT_TRUE(says(gather.wait(), Code::kMismatch, {"join"}));
      }
      const Submitted join = submit(to, 0, request_of(Kind::kJoin, "join", 0));
      ASSERT_TRUE(join.wait().ok()) << join.wait().message();
      EXPECT_EQ(join.outcome().last_joined, 2);
    });
  }
}

TEST(Controller, ARankThatHasJoinedSubmitsNothingUntilAllHave) {
  ControllerRanks ranks({.world = 2});
  const Submitted first = submit(ranks.at(0), 0, request_of(Kind::kJoin, "join", 0));
  EXPECT_TRUE(
      says(sum_floats(ranks.at(0), "x", {1}).refusal, Code::kInvalidArgument, {"'x'", "joined"}));
  const Submitted alone = sum_floats(ranks.at(1), "y", {5});
  ASSERT_TRUE(alone.wait().ok()) << alone.wait().message();
  EXPECT_EQ(alone.floats(), Floats{5});
  EXPECT_FALSE(first.submission->done());
  const Submitted second = submit(ranks.at(1), 0, request_of(Kind::kJoin, "join", 0));
  EXPECT_TRUE(first.wait().ok());
  EXPECT_TRUE(second.wait().ok());
  EXPECT_EQ(first.outcome().last_joined, 1);
  ranks.run([](int, Controller& to) { EXPECT_TRUE(sum_floats(to, "x", {1}).wait().ok()); });
}

TEST(Controller, AJoinMayHaveTheNameOfAnotherRequest) {
  ControllerRanks ranks({.world = 2});
  for (int round = 0; round < 2; ++round) {
    const Submitted early = sum_floats(ranks.at(0), "y", {2});
    const Submitted join = submit(ranks.at(0), 0, request_of(Kind::kJoin, "x", 0));
    ASSERT_TRUE(join.refusal.ok()) << join.refusal.message();
    for (const char* const name : {"x", "y"}) {
      const Submitted other = sum_floats(ranks.at(1), name, {5});
      ASSERT_TRUE(other.wait().ok()) << other.wait().message();
      EXPECT_EQ(other.floats(), Floats{name == std::string("x") ? 5.0f : 7.0f});
    }
    EXPECT_TRUE(early.wait().ok());
    EXPECT_FALSE(join.submission->done());
    const Submitted last = sum_floats(ranks.at(1), "z", {1});
    ASSERT_TRUE(last.wait().ok());
    const Submitted second = submit(ranks.at(1), 0, request_of(Kind::kJoin, "z", 0));
    ASSERT_TRUE(second.wait().ok()) << second.wait().message();
    ASSERT_TRUE(join.wait().ok()) << join.wait().message();
    EXPECT_EQ(join.outcome().last_joined, 1);
  }
}

TEST(Controller, AJoinMayHaveTheNameOfWhatIsPendingOnItsRank) {
  ControllerRanks ranks({.world = 2});
  const Submitted early = sum_floats(ranks.at(0), "x", {2});
  const Submitted join = submit(ranks.at(0), 0, request_of(Kind::kJoin, "x", 0));
  ASSERT_TRUE(join.refusal.ok()) << join.refusal.message();
  const Submitted other = sum_floats(ranks.at(1), "x", {5});
  ASSERT_TRUE(other.wait().ok()) << other.wait().message();
  ASSERT_TRUE(early.wait().ok()) << early.wait().message();
  EXPECT_EQ(early.floats(), Floats{7});
  EXPECT_TRUE(submit(ranks.at(1), 0, request_of(Kind::kJoin, "x", 0)).wait().ok());
  EXPECT_TRUE(join.wait().ok());
}

TEST(Controller, RefusesAtOnceWhatItCanSeeToBeWrong) {
  ControllerRanks ranks({.world = 2});
  Controller& to = ranks.at(0);
  const auto refused = [&](const Request& request, const std::vector<std::string>& words) {
    const auto memory = std::make_shared<RequestMemory>(std::vector<testing::Bytes>{bytes_of({1})});
    EXPECT_TRUE(says(submit(to, 0, request, memory).refusal, Code::kInvalidArgument, words));
  };
  Request root = request_of(Kind::kBroadcast, "x", 1);
  root.root = 2;
  refused(root, {"broadcast", "x", "2"});
  Request scalar = request_of(Kind::kReduceScatter, "x", 1);
  scalar.shapes = {{}};
  refused(scalar, {"reducescatter", "dimension"});
  Request splits = request_of(Kind::kAllToAll, "x", 1);
  splits.splits = {1, 1};
  refused(splits, {"alltoall", "splits"});
  Request integers = request_of(Kind::kAdasum, "x", 1);
  integers.dtype = Dtype::kI32;
  refused(integers, {"adasum", "int32"});
  Request set = request_of(Kind::kRemoveSet, "x", 1);
  refused(set, {"global process set"});
  set.root = 9;
  refused(set, {"process set 9", "there are: 0"});
  EXPECT_TRUE(says(submit(to, 0, request_of(Kind::kAllReduce, "x", 1)).refusal,
                   Code::kInvalidArgument, {"no tensor"}));
  EXPECT_TRUE(says(sum_floats(to, "x", {1}, 5).refusal, Code::kInvalidArgument,
                   {"process set 5", "there are: 0"}));
  const Submitted first = sum_floats(to, "x", {1});
  EXPECT_TRUE(says(sum_floats(to, "x", {1}).refusal, Code::kInvalidArgument, {"'x'", "pending"}));
  const Submitted other = sum_floats(ranks.at(1), "x", {1});
  EXPECT_TRUE(first.wait().ok());
  EXPECT_TRUE(other.wait().ok());
  EXPECT_TRUE(sum_floats(to, "x", {1}).refusal.ok()) << "the name is free again";
}

TEST(Controller, RanksThatDisagreeAllHearSoAndGoOn) {
  ControllerRanks ranks({.world = 3});
  ranks.run([&](int rank, Controller& to) {
    for (int round = 0; round < 3; ++round) {
      const Submitted bad = sum_floats(to, "x", Floats(rank == 1 ? 3 : 2, 1.0f));
      EXPECT_TRUE(says(bad.wait(), Code::kMismatch, {"x", "[2]", "[3]"}));
      Request op = request_of(Kind::kAllReduce, "y", 0);
      op.op = rank == 2 ? ReduceOp::kMax : ReduceOp::kSum;
      EXPECT_EQ(submit_floats(to, 0, op, {1}).wait().code(), Code::kMismatch);
      const Submitted good = sum_floats(to, "x", {1, 2});
      ASSERT_TRUE(good.wait().ok()) << good.wait().message();
      EXPECT_EQ(good.floats(), (Floats{3, 6}));
    }
  });
}

TEST(Controller, TwoOfOneGroupKeepApart) {
  ControllerRanks ranks({.world = 2});
  std::vector<std::unique_ptr<Controller>> others(2);
  for (int rank = 0; rank < 2; ++rank) {
    ControllerOptions options{.rank = rank, .world = 2};
    options.group = ranks.ranks().group(rank).options().id;
    auto made = Controller::start(
        std::shared_ptr<NestedGroups>(std::shared_ptr<void>(), &ranks.nested(rank)), options);
    ASSERT_TRUE(made.ok()) << made.status().message();
    others[rank] = std::move(made).value();
  }
  ranks.run([&](int rank, Controller& to) {
    const Submitted one = sum_floats(to, "x", {1});
    const Submitted two = sum_floats(*others[rank], "x", {10});
    EXPECT_TRUE(one.wait().ok());
    EXPECT_TRUE(two.wait().ok());
    EXPECT_EQ(one.floats(), Floats{2});
    EXPECT_EQ(two.floats(), Floats{20});
    others[rank].reset();
    EXPECT_TRUE(sum_floats(to, "x", {1}).wait().ok()) << "it outlives the other";
  });
}

}  // namespace
}  // namespace taco::pg::controller
