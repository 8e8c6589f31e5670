// Ranks that have joined: zeros stand for them in sums and averages, and in nothing else.
#include <gtest/gtest.h>

#include "support/negotiating_ranks.h"

namespace taco::pg::controller {
namespace {

using kernels::ReduceOp;

const Request kJoining = make_request(Kind::kJoin, "join");

TEST(NegotiationJoin, ZerosStandForARankThatHasJoined) {
  NegotiatingRanks ranks(3);
  Request sum = make_request(Kind::kAllReduce, "sum", {{2}});
  ASSERT_TRUE(ranks[1].submit(kJoining).ok());
  ranks.round();
  EXPECT_EQ(ranks[0].joined(), std::vector<int>{1});
  for (const bool is_cached : {false, true}) {
    ASSERT_TRUE(ranks[0].submit(sum).ok() && ranks[2].submit(sum).ok());
    const auto responses = ranks.round();
    ASSERT_EQ(responses[1].size(), 1u);
    EXPECT_TRUE(responses[1][0].stands_for_joined);
    EXPECT_FALSE(responses[0][0].stands_for_joined || responses[2][0].stands_for_joined);
    EXPECT_EQ(responses[1][0].joined, 1);
    EXPECT_EQ(responses[1][0].requests[0].shapes, sum.shapes);
    EXPECT_EQ(ranks.words_followed(), !is_cached);
  }
  EXPECT_EQ(ranks.failure(), "");
}

TEST(NegotiationJoin, OtherKindsFailOnAllRanks) {
  Request minimum = make_request(Kind::kAllReduce, "x", {{2}});
  minimum.op = ReduceOp::kMin;
  Request split = make_request(Kind::kAllToAll, "x", {{2}});
  split.splits = {1, 1};
  for (const Request& request :
       {minimum, split, make_request(Kind::kAllGather, "x", {{2}}),
        make_request(Kind::kBarrier, "x"), make_request(Kind::kBroadcast, "x", {{2}}),
        make_request(Kind::kReduceScatter, "x", {{2}}), make_request(Kind::kAdasum, "x", {{2}})}) {
    NegotiatingRanks ranks(2);
    ranks.submit(request);  // so that it is in the cache
    EXPECT_TRUE(ranks.round()[0][0].error.ok());
    ASSERT_TRUE(ranks[0].submit(request).ok());
    ASSERT_TRUE(ranks[1].submit(kJoining).ok());
    std::size_t answers = 0;
    for (int round = 0; round < 2; ++round) {
      const auto responses = ranks.round();
      answers += responses[0].size();
      for (const Response& response : responses[1]) {
        EXPECT_EQ(response.error.code(), Code::kMismatch);
        EXPECT_NE(response.error.message().find("rank 1 has joined"), std::string::npos)
            << response.error.message();
      }
    }
    EXPECT_EQ(answers, 1u) << name_of(request.kind);
    // The job goes on.
    ASSERT_TRUE(ranks[0].submit(kJoining).ok());
    EXPECT_EQ(ranks.round()[0].size(), 1u);
    ranks.submit(request);
    EXPECT_TRUE(ranks.round()[0][0].error.ok());
    EXPECT_EQ(ranks.failure(), "");
  }
}

TEST(NegotiationJoin, AllLearnWhoJoinedLastAndBeginAnew) {
  NegotiatingRanks ranks(3);
  for (int turn = 0; turn < 3; ++turn) {
    ASSERT_TRUE(ranks[turn].submit(kJoining).ok());
    EXPECT_TRUE(ranks.round()[0].empty());
    EXPECT_TRUE(ranks[turn].wants_round());
    ASSERT_TRUE(ranks[(turn + 1) % 3].submit(kJoining).ok());
    EXPECT_TRUE(ranks.round()[0].empty());
    ASSERT_TRUE(ranks[(turn + 2) % 3].submit(kJoining).ok());
    const auto responses = ranks.round();
    for (const auto& on_rank : responses) {
      ASSERT_EQ(on_rank.size(), 1u);
      EXPECT_EQ(on_rank[0].requests[0], kJoining);
      EXPECT_EQ(on_rank[0].last_joined, (turn + 2) % 3);
    }
    EXPECT_TRUE(ranks[0].joined().empty());
    EXPECT_FALSE(ranks[0].wants_round());
    ranks.submit(make_request(Kind::kAllGather, "g", {{1}}));
    EXPECT_TRUE(ranks.round()[0][0].error.ok());
  }
  EXPECT_EQ(ranks.failure(), "");
}

TEST(NegotiationJoin, WhatWasSubmittedBeforeIsNotLost) {
  for (const bool is_cached : {false, true}) {
    NegotiatingRanks ranks(2);
    const Request early = make_request(Kind::kAllReduce, "early", {{2}});
    const Request gather = make_request(Kind::kAllGather, "gather", {{2}});
    if (is_cached) {
      ranks.submit(early);
      ranks.submit(gather);
      ranks.round();
    }
    for (const Request& request : {early, gather, kJoining}) {
      ASSERT_TRUE(ranks[0].submit(request).ok());
    }
    ranks.round();
    ASSERT_TRUE(ranks[1].submit(early).ok() && ranks[1].submit(gather).ok());
    const auto responses = ranks.round();
    ASSERT_EQ(responses[0].size(), 2u);
    for (const Response& response : responses[0]) {
      EXPECT_TRUE(response.error.ok()) << response.error.message();
      EXPECT_EQ(response.joined, 0);
      EXPECT_FALSE(response.stands_for_joined);
    }
    EXPECT_EQ(ranks.failure(), "");
  }
}

TEST(NegotiationJoin, TheLastOnesRequestsRunBeforeTheJoinEnds) {
  NegotiatingRanks ranks(2);
  ASSERT_TRUE(ranks[0].submit(kJoining).ok());
  ranks.round();
  ASSERT_TRUE(ranks[1].submit(make_request(Kind::kAllReduce, "late", {{2}})).ok());
  ASSERT_TRUE(ranks[1].submit(kJoining).ok());
  const auto responses = ranks.round();
  ASSERT_EQ(responses[0].size(), 2u);
  EXPECT_EQ(responses[0][0].requests[0].name, "late");
  EXPECT_TRUE(responses[0][0].stands_for_joined);
  EXPECT_EQ(responses[0][1].last_joined, 1);
}

TEST(NegotiationJoin, ARankThatHasJoinedSubmitsNothingMore) {
  NegotiatingRanks ranks(2);
  ASSERT_TRUE(ranks[0].submit(kJoining).ok());
  for (int round = 0; round < 2; ++round) {
    const Status status = ranks[0].submit(make_request(Kind::kAllReduce, "x", {{1}}));
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_NE(status.message().find("has joined"), std::string::npos) << status.message();
    EXPECT_EQ(ranks[0].submit(kJoining).code(), Code::kInvalidArgument);
    ranks.round();
  }
}

TEST(NegotiationJoin, ItsNameMeetsNoOther) {
  NegotiatingRanks ranks(2);
  const Request sum = make_request(Kind::kAllReduce, "x", {{2}});
  ranks.submit(sum);
  ranks.round();
  for (const bool is_cached : {true, false}) {
    ASSERT_TRUE(ranks[0].submit(sum).ok());
    ASSERT_TRUE(ranks[0].submit(make_request(Kind::kJoin, "x")).ok());
    ranks.round();
    ASSERT_EQ(ranks[0].waiting().size(), 2u);
    EXPECT_FALSE(ranks[0].waiting()[0].is_join);
    EXPECT_TRUE(ranks[0].waiting()[1].is_join);
    ASSERT_TRUE(ranks[1].submit(sum).ok());
    ASSERT_EQ(ranks.round()[0].size(), 1u) << is_cached;
    ASSERT_TRUE(ranks[1].submit(make_request(Kind::kJoin, "x")).ok());
    EXPECT_EQ(ranks.round()[1][0].last_joined, 1);
  }
  EXPECT_EQ(ranks.failure(), "");
}

TEST(NegotiationJoin, RequestsWithAndWithoutZerosAreNotFused) {
  NegotiatingRanks ranks(2);
  ASSERT_TRUE(ranks[0].submit(make_request(Kind::kAllReduce, "both", {{2}})).ok());
  ASSERT_TRUE(ranks[0].submit(kJoining).ok());
  ranks.round();
  ASSERT_TRUE(ranks[1].submit(make_request(Kind::kAllReduce, "both", {{2}})).ok());
  ASSERT_TRUE(ranks[1].submit(make_request(Kind::kAllReduce, "one", {{2}})).ok());
  const auto responses = ranks.round();
  ASSERT_EQ(responses[0].size(), 2u);
  EXPECT_FALSE(responses[0][0].stands_for_joined);
  EXPECT_TRUE(responses[0][1].stands_for_joined);
  EXPECT_EQ(ranks.failure(), "");
}

TEST(NegotiationJoin, AStalledJoinNamesThoseThatHaveNotJoined) {
  NegotiatingRanks ranks(3);
  ASSERT_TRUE(ranks[1].submit(kJoining).ok());
  ranks[1].raise(Negotiation::Flag::kTellWaiting);
  ranks.round();
  ASSERT_EQ(ranks[1].waiting().size(), 1u);
  EXPECT_EQ(ranks[1].waiting()[0].missing, (std::vector<int>{0, 2}));
}

}  // namespace
}  // namespace taco::pg::controller
