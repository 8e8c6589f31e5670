// Rounds among a few ranks: order, the cache, what fails, what is asked for.
#include "pg/controller/negotiation.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "pg/controller/words.h"
#include "support/negotiating_ranks.h"

namespace taco::pg::controller {
namespace {

using kernels::Dtype;
using kernels::ReduceOp;
using Flag = Negotiation::Flag;

std::vector<std::string> names_of(const std::vector<Response>& responses) {
  std::vector<std::string> names;
  for (const Response& response : responses) {
    for (const Request& request : response.requests) names.push_back(request.name);
  }
  return names;
}

bool tells(const Status& status, const std::string& text) {
  return status.message().find(text) != std::string::npos;
}

// Two rounds' worth of one request that all submit, which fails as `expected` says.
void expect_mismatch(const Request& rank_0, const Request& rank_1, const std::string& expected) {
  NegotiatingRanks ranks(2);
  ASSERT_TRUE(ranks[0].submit(rank_0).ok());
  ASSERT_TRUE(ranks[1].submit(rank_1).ok());
  const auto responses = ranks.round();
  ASSERT_EQ(ranks.failure(), "");
  for (const auto& on_rank : responses) {
    ASSERT_EQ(on_rank.size(), 1u);
    EXPECT_EQ(on_rank[0].error.code(), Code::kMismatch);
    EXPECT_NE(on_rank[0].error.message().find(expected), std::string::npos)
        << on_rank[0].error.message();
  }
  // The job goes on.
  ranks.submit(rank_0);
  EXPECT_EQ(names_of(ranks.round()[1]), std::vector<std::string>{"x"});
  EXPECT_EQ(ranks.failure(), "");
}

TEST(Negotiation, RunsInOneOrderWhatRanksSubmitInOthers) {
  for (const int world : {1, 2, 3, 64}) {
    NegotiatingRanks ranks(world, {.fusion_bytes = 0});
    for (int rank = 0; rank < world; ++rank) {
      for (int i = 0; i < 5; ++i) {
        const std::string name(1, static_cast<char>('a' + (i + rank) % 5));
        ASSERT_TRUE(ranks[rank].submit(make_request(Kind::kAllReduce, name, {{2, 3}})).ok());
      }
    }
    const auto responses = ranks.round();
    for (const auto& on_rank : responses) {
      EXPECT_EQ(names_of(on_rank), (std::vector<std::string>{"a", "b", "c", "d", "e"}));
    }
    EXPECT_EQ(ranks.failure(), "");
    EXPECT_FALSE(ranks[0].wants_round());
  }
}

TEST(Negotiation, NothingRunsBeforeAllHaveSubmittedIt) {
  NegotiatingRanks ranks(3);
  const Request request = make_request(Kind::kAllReduce, "x", {{4}});
  for (const bool is_cached : {false, true}) {
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_TRUE(ranks.round()[0].empty());
      ASSERT_TRUE(ranks[rank].submit(request).ok());
      EXPECT_TRUE(ranks[rank].wants_round());
    }
    EXPECT_EQ(names_of(ranks.round()[2]), std::vector<std::string>{"x"});
    EXPECT_EQ(ranks.words_followed(), !is_cached);
  }
  EXPECT_EQ(ranks.failure(), "");
}

TEST(Negotiation, ASteadyStateNeedsNoWords) {
  NegotiatingRanks ranks(4);
  for (int step = 0; step < 5; ++step) {
    for (int i = 0; i < 200; ++i) {
      ranks.submit(make_request(Kind::kAllReduce, "gradient." + std::to_string(i), {{i, 3}}));
    }
    EXPECT_EQ(names_of(ranks.round()[3]).size(), 200u);
    EXPECT_EQ(ranks.words_followed(), step == 0);
  }
  EXPECT_EQ(ranks[0].bits().size(), 4u) << "a bit for each, and three";
  EXPECT_EQ(ranks.failure(), "");
}

TEST(Negotiation, AChangedShapeIsSaidAgainByAll) {
  NegotiatingRanks ranks(2);
  ranks.submit(make_request(Kind::kAllReduce, "x", {{4}}));
  ranks.round();
  ASSERT_TRUE(ranks[0].submit(make_request(Kind::kAllReduce, "x", {{5}})).ok());
  ASSERT_TRUE(ranks[1].submit(make_request(Kind::kAllReduce, "x", {{4}})).ok());
  EXPECT_TRUE(ranks.round()[0].empty());
  EXPECT_TRUE(ranks[1].wants_round());
  const auto responses = ranks.round();
  ASSERT_EQ(responses[0].size(), 1u);
  EXPECT_NE(responses[1][0].error.message().find("rank 0: float32 [5]; rank 1: float32 [4]"),
            std::string::npos)
      << responses[1][0].error.message();
  for (int step = 0; step < 2; ++step) {
    ranks.submit(make_request(Kind::kAllReduce, "x", {{6}}));
    EXPECT_TRUE(ranks.round()[0][0].error.ok());
    EXPECT_EQ(ranks.words_followed(), step == 0);
  }
  EXPECT_EQ(ranks.failure(), "");
}

TEST(Negotiation, WhatDiffersFailsOnAllRanksAndShowsBothSides) {
  Request one = make_request(Kind::kAllReduce, "x", {{2, 3}}), other = one;
  other.shapes = {{2, 4}};
  expect_mismatch(one, other, "rank 0: float32 [2, 3]; rank 1: float32 [2, 4]");
  other = one;
  other.dtype = Dtype::kF64;
  expect_mismatch(one, other, "rank 0: float32 [2, 3]; rank 1: float64 [2, 3]");
  other = one;
  other.op = ReduceOp::kAvg;
  expect_mismatch(one, other, "rank 0: SUM; rank 1: AVG");
  other = one;
  other.prescale = 0.5;
  expect_mismatch(one, other, "rank 1: prescale 0.5, postscale 1");
  other = one;
  other.postscale = 0.25;
  expect_mismatch(one, other, "rank 1: prescale 1, postscale 0.25");
  other = one;
  other.kind = Kind::kAllGather;
  expect_mismatch(one, other, "rank 0: allreduce; rank 1: allgather");
  other = one;
  other.shapes.push_back({1});
  expect_mismatch(one, other, "rank 0: 1 tensor; rank 1: 2 tensors");
  one.kind = other.kind = Kind::kBroadcast;
  other = one;
  other.root = 1;
  expect_mismatch(one, other, "rank 0: root 0; rank 1: root 1");
  one.kind = other.kind = Kind::kAllGather;
  other = one;
  other.shapes = {{7, 4}};
  expect_mismatch(one, other, "rank 0: float32 [*, 3]; rank 1: float32 [*, 4]");
}

TEST(Negotiation, FirstDimensionsAreKnownToAll) {
  NegotiatingRanks ranks(2);
  for (const bool is_cached : {false, true}) {
    ASSERT_TRUE(ranks[0].submit(make_request(Kind::kAllGather, "g", {{2, 3}, {0}})).ok());
    ASSERT_TRUE(ranks[1].submit(make_request(Kind::kAllGather, "g", {{5, 3}, {1}})).ok());
    Request split = make_request(Kind::kAllToAll, "s", {{3}});
    split.splits = {1, 2};
    ASSERT_TRUE(ranks[0].submit(split).ok());
    split.splits = {0, 2};
    ASSERT_TRUE(ranks[1].submit(split).ok());
    const auto responses = ranks.round();
    ASSERT_EQ(responses[1].size(), 2u);
    using Rows = std::vector<std::vector<std::int64_t>>;
    EXPECT_EQ(responses[1][0].rows, (Rows{{2, 5}, {0, 1}}));
    EXPECT_EQ(responses[1][1].rows, (Rows{{1, 2}, {0, 2}}));
    EXPECT_EQ(ranks.words_followed(), !is_cached);
  }
}

TEST(Negotiation, ANameIsPendingOnce) {
  NegotiatingRanks ranks(2);
  const Request request = make_request(Kind::kAllReduce, "grad/x", {{2}});
  for (int step = 0; step < 2; ++step) {  // by words, then by its slot
    ranks.submit(request);
    const Status again = ranks[0].submit(make_request(Kind::kAllGather, "grad/x", {{3}}));
    EXPECT_EQ(again.code(), Code::kInvalidArgument);
    EXPECT_NE(again.message().find("'grad/x'"), std::string::npos) << again.message();
    EXPECT_EQ(names_of(ranks.round()[0]).size(), 1u);
  }
}

TEST(Negotiation, ImpossibleRequestsAreRefusedAtOnce) {
  Negotiation alone({.rank = 0, .world = 2});
  const auto refusal = [&](Request request) {
    const Status status = alone.submit(std::move(request));
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    return status.message();
  };
  const auto has = [](const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
  };
  EXPECT_TRUE(has(refusal(make_request(Kind::kAllReduce, "x", {{-1}})), "is -1, below zero"));
  EXPECT_TRUE(has(refusal(make_request(Kind::kReduceScatter, "x", {{}})), "no dimension"));
  const Shape huge = {std::int64_t{1} << 40, std::int64_t{1} << 40};
  EXPECT_TRUE(has(refusal(make_request(Kind::kAllReduce, "x", {huge})), "larger than any memory"));
  const Shape deep(kMaxDimensions + 1, 1);
  EXPECT_TRUE(has(refusal(make_request(Kind::kAllReduce, "x", {deep})), "at most 64"));
  EXPECT_TRUE(has(refusal(make_request(Kind::kAllReduce, std::string(kMaxNameBytes + 1, 'n'))),
                  "has 65537 bytes"));
  Request request = make_request(Kind::kBroadcast, "x", {{1}});
  request.root = 2;
  EXPECT_TRUE(has(refusal(request), "its root is 2; ranks of the process set are 0 to 1"));
  request = make_request(Kind::kAllReduce, "x", {{1}});
  request.prescale = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE(has(refusal(request), "not a number"));
  request = make_request(Kind::kAllReduce, "x", {{1}});
  request.op = ReduceOp::kBand;
  EXPECT_TRUE(has(refusal(request), "its op is BAND"));
  request = make_request(Kind::kAllToAll, "x", {{3}});
  request.splits = {3};
  EXPECT_TRUE(has(refusal(request), "1 splits; it takes one for each of the 2 ranks"));
  request.splits = {2, 2};
  EXPECT_TRUE(has(refusal(request), "exceed the first dimension, 3"));
  request.splits = {-1, 2};
  EXPECT_TRUE(has(refusal(request), "a split is -1"));
  request = make_request(Kind::kAddSet, "x");
  request.ranks = {0, 2};
  EXPECT_TRUE(has(refusal(request), "no rank 2"));
  request.ranks = {1, 0, 1};
  EXPECT_TRUE(has(refusal(request), "rank 1 is named twice"));
  EXPECT_FALSE(alone.wants_round());
}

TEST(Negotiation, ProcessSetsAreComparedWhateverTheOrderOfTheirRanks) {
  NegotiatingRanks ranks(3);
  Request set = make_request(Kind::kAddSet, "set");
  set.ranks = {2, 0};
  ASSERT_TRUE(ranks[0].submit(set).ok());
  set.ranks = {0, 2};
  ASSERT_TRUE(ranks[1].submit(set).ok() && ranks[2].submit(set).ok());
  auto responses = ranks.round();
  ASSERT_EQ(responses[0].size(), 1u);
  EXPECT_TRUE(responses[0][0].error.ok()) << responses[0][0].error.message();
  EXPECT_EQ(responses[0][0].requests[0].ranks, (std::vector<std::int64_t>{0, 2}));
  ASSERT_TRUE(ranks[0].submit(set).ok() && ranks[1].submit(set).ok());
  set.ranks = {0, 1};
  ASSERT_TRUE(ranks[2].submit(set).ok());
  responses = ranks.round();
  EXPECT_TRUE(ranks.words_followed()) << "process sets have no slots";
  EXPECT_NE(responses[0][0].error.message().find("ranks 0, 1: [0, 2]; rank 2: [0, 1]"),
            std::string::npos)
      << responses[0][0].error.message();
}

TEST(Negotiation, RanksThatMissAStalledTensorAreNamedWhenAsked) {
  NegotiatingRanks ranks(4);
  const Request cached = make_request(Kind::kAllReduce, "cached", {{1}});
  ranks.submit(cached);
  ranks.round();
  ASSERT_TRUE(ranks[0].submit(cached).ok() && ranks[2].submit(cached).ok());
  const Request fresh = make_request(Kind::kAllReduce, "fresh", {{1}});
  ASSERT_TRUE(ranks[0].submit(fresh).ok() && ranks[3].submit(fresh).ok());
  ranks.round();
  ASSERT_EQ(ranks[0].waiting().size(), 2u);
  EXPECT_TRUE(ranks[0].waiting()[0].missing.empty());
  ranks[2].raise(Flag::kTellWaiting);
  ranks.round();
  const auto waiting = ranks[0].waiting();
  EXPECT_EQ(waiting[0].name, "cached");
  EXPECT_EQ(waiting[0].since_round, 2u);
  EXPECT_EQ(waiting[0].missing, (std::vector<int>{1, 3}));
  EXPECT_EQ(waiting[1].name, "fresh");
  EXPECT_EQ(waiting[1].missing, (std::vector<int>{1, 2}));
  EXPECT_TRUE(ranks[1].waiting().empty());
  ranks.round();
  EXPECT_FALSE(ranks.words_followed()) << "a flag is raised for one round";
}

TEST(Negotiation, AllLearnOfAShutdownInTheSameRound) {
  NegotiatingRanks ranks(3);
  EXPECT_FALSE(ranks[1].wants_round());
  ranks[1].raise(Flag::kShutdown);
  EXPECT_TRUE(ranks[1].wants_round());
  ranks.round();
  for (int rank = 0; rank < 3; ++rank) EXPECT_TRUE(ranks[rank].shutdown_asked());
  ranks.round();
  EXPECT_FALSE(ranks[0].shutdown_asked());
}

// All of them together, which no rank could see in its own.
TEST(Negotiation, RowsThatAreMoreThanAnyMemoryAreRefusedOnAllRanks) {
  constexpr std::int64_t kMost = std::int64_t{1} << 62;  // bytes of one request
  Request gather = make_request(Kind::kAllGather, "x", {{kMost}});
  Request split = make_request(Kind::kAllToAll, "x", {{kMost}});
  split.splits = {kMost, 0, 0};
  for (Request request : {gather, split}) {
    NegotiatingRanks ranks(3);
    for (const kernels::Dtype dtype : {kernels::Dtype::kU8, kernels::Dtype::kF32}) {
      request.dtype = dtype;
      const std::int64_t rows = kMost / static_cast<std::int64_t>(kernels::size_of(dtype));
      request.shapes = {{rows}};
      if (!request.splits.empty()) request.splits[0] = rows;
      ranks.submit(request);
      const auto responses = ranks.round();
      ASSERT_EQ(responses[0].size(), 1u);
      const Status error = responses[0][0].error;
      EXPECT_EQ(error.code(), Code::kInvalidArgument);
      const std::string shown = std::to_string(rows) + ", " + std::to_string(rows);
      EXPECT_TRUE(tells(error, shown)) << error.message();
      EXPECT_TRUE(tells(error, "more than any memory")) << error.message();
    }
    ranks.submit(make_request(Kind::kAllGather, "x", {{2, 3}}));
    EXPECT_TRUE(ranks.round()[0][0].error.ok()) << "they go on";
    EXPECT_EQ(ranks.failure(), "");
  }
}

// A dimension of none makes bytes of none, of however many rows.
TEST(Negotiation, RowsWithoutBytesMayBeMany) {
  NegotiatingRanks ranks(3);
  ranks.submit(make_request(Kind::kAllGather, "x", {{1 << 30, 0}}));
  EXPECT_TRUE(ranks.round()[0][0].error.ok());
  ranks.submit(make_request(Kind::kAllGather, "y", {{0, 1 << 30, 1 << 30, 1 << 30}}));
  EXPECT_TRUE(ranks.round()[0][0].error.ok());
  EXPECT_EQ(ranks.failure(), "");
}

TEST(Negotiation, SizesOfWordsThatNoRankHasAreRefusedAndNamed) {
  Negotiation alone({.rank = 0, .world = 3});
  const auto most = static_cast<std::int64_t>(most_words_bytes(3, 1024));
  EXPECT_TRUE(alone.check_sizes({1, most, 21}).ok());
  for (const std::int64_t bytes : {std::int64_t{0}, std::int64_t{-1}, most + 1, INT64_MAX}) {
    const Status status = alone.check_sizes({1, 1, bytes});
    EXPECT_EQ(status.code(), Code::kInternal);
    EXPECT_TRUE(tells(status, "rank 2")) << status.message();
    EXPECT_TRUE(tells(status, std::to_string(bytes) + " bytes")) << status.message();
  }
}

TEST(Negotiation, MoreWordsThanARoundTakesAreSaidInTheNext) {
  NegotiatingRanks ranks(2);
  for (int i = 0; i < 40; ++i) {
    ranks.submit(make_request(Kind::kAllReduce, std::to_string(i) + std::string(60'000, 'n')));
  }
  std::size_t first = names_of(ranks.round()[0]).size(), all = first;
  EXPECT_GT(first, 10u);
  EXPECT_LT(first, 20u) << "a megabyte at most";
  for (int round = 0; round < 2; ++round) all += names_of(ranks.round()[0]).size();
  EXPECT_EQ(all, 40u);
  EXPECT_EQ(ranks.failure(), "");
}

TEST(Negotiation, WordsOfAnotherTableAreNoticed) {
  NegotiatingRanks ranks(2);
  Negotiation stranger({.rank = 1, .world = 2});
  ranks.submit(make_request(Kind::kAllReduce, "x", {{1}}));
  ranks.round();
  ASSERT_TRUE(ranks[0].submit(make_request(Kind::kAllReduce, "y", {{1}})).ok());
  stranger.bits();
  ASSERT_TRUE(stranger.submit(make_request(Kind::kAllReduce, "y", {{1}})).ok());
  const auto combined = ranks[0].bits();
  stranger.bits();
  ASSERT_TRUE(ranks[0].words_follow(combined) && stranger.words_follow({0}));
  const std::string own = ranks[0].words(), theirs = stranger.words();
  const Status status = ranks[0].hear({own, theirs});
  EXPECT_EQ(status.code(), Code::kInternal);
  EXPECT_NE(status.message().find("rank 1"), std::string::npos) << status.message();
  EXPECT_EQ(ranks[0].hear({own}).code(), Code::kInternal);
  EXPECT_EQ(ranks[0].hear({own, "no words"}).code(), Code::kInternal);
}

TEST(Negotiation, ACacheOfOtherSizesComesToTheSame) {
  for (const std::size_t slots : {0u, 1u, 3u, 7u}) {
    NegotiatingRanks ranks(2, {.fusion_bytes = 0, .cache_slots = slots});
    for (int step = 0; step < 6; ++step) {
      for (int i = 0; i < 7; ++i) {
        ranks.submit(make_request(Kind::kAllReduce, std::to_string(i), {{i}}));
      }
      auto names = names_of(ranks.round()[1]);
      std::ranges::sort(names);
      EXPECT_EQ(names, (std::vector<std::string>{"0", "1", "2", "3", "4", "5", "6"}));
      EXPECT_EQ(ranks.words_followed(), step == 0 || slots < 7);
    }
    EXPECT_EQ(ranks.failure(), "");
  }
}

}  // namespace
}  // namespace taco::pg::controller
