#include "zerocache/ranks/zero3/gather_order.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <string>
#include <vector>

namespace taco::zerocache {
namespace {

using Stripes = std::vector<StripeId>;

Stripes wanted(const GatherOrder& order) { return {order.wanted().begin(), order.wanted().end()}; }

// A pass of layers, each with one stripe.
void run(GatherOrder& order, const Stripes& layers, const std::string& name = "train") {
  order.begin_run(name);
  for (const StripeId layer : layers) {
    order.begin(layer, {layer});
    order.end(layer);
  }
  order.end_run();
}

TEST(GatherOrder, WantsWhatIsInUseAndThenWhatComesNext) {
  GatherOrder order(3);
  order.begin_run("train");
  EXPECT_TRUE(order.wanted().empty()) << "nothing is known of a first run";
  order.begin(0, {0});
  EXPECT_EQ(wanted(order), Stripes({0}));
  order.end(0);
  EXPECT_EQ(wanted(order), Stripes({0})) << "it may be used again";
  order.end_run();
  EXPECT_TRUE(order.wanted().empty());
  run(order, {0, 1, 2, 3, 4}, "eval");
  order.begin_run("eval");
  EXPECT_EQ(wanted(order), Stripes({0, 1, 2}));
  order.begin(0, {0});
  EXPECT_EQ(wanted(order), Stripes({0, 1, 2}));
  EXPECT_EQ(order.in_use(), 1u);
  order.end(0);
  EXPECT_EQ(wanted(order), Stripes({1, 2, 3}));
  order.begin(1, {1});
  order.end(1);
  order.begin(2, {2});
  order.end(2);
  EXPECT_EQ(wanted(order), Stripes({3, 4})) << "the run ends there";
}

TEST(GatherOrder, WhatIsUsedAgainSoonIsKept) {
  GatherOrder order(2);
  run(order, {0, 1, 2, 2, 1, 0});
  order.begin_run("train");
  for (const StripeId layer : {0u, 1u, 2u}) {
    order.begin(layer, {layer});
    order.end(layer);
  }
  EXPECT_EQ(wanted(order), Stripes({2, 1}));
}

TEST(GatherOrder, UsesThatNestAreHeldTogetherHoweverManyStripesTheyAre) {
  GatherOrder order(2);
  order.begin_run("train");
  order.begin(7, {4, 5});
  order.begin(8, {5, 6});
  EXPECT_EQ(wanted(order), Stripes({4, 5, 6}));
  EXPECT_TRUE(order.uses(6));
  EXPECT_FALSE(order.uses(3));
  EXPECT_TRUE(order.end(7));
  EXPECT_EQ(wanted(order), Stripes({5, 6}));
  EXPECT_FALSE(order.uses(4));
  EXPECT_TRUE(order.end(8));
  EXPECT_FALSE(order.end(8));
  EXPECT_EQ(order.in_use(), 0u);
}

TEST(GatherOrder, IsDueWhenHalfOfTheRoomIsEmpty) {
  GatherOrder order(5);
  run(order, {0, 1, 2, 3, 4, 5, 6, 7});
  order.begin_run("train");
  std::set<StripeId> held;
  const auto due = [&] {
    return order.due([&](StripeId stripe) { return held.contains(stripe); });
  };
  EXPECT_EQ(due(), Stripes({0, 1, 2, 3, 4}));
  held = {0, 1, 2, 3, 4};
  order.begin(0, {0});
  order.end(0);
  EXPECT_TRUE(due().empty()) << "four of five are there";
  order.begin(1, {1});
  order.end(1);
  EXPECT_TRUE(due().empty());
  order.begin(2, {2});
  EXPECT_EQ(due(), Stripes({5, 6})) << "two of four are there";
  order.end(2);
  EXPECT_EQ(due(), Stripes({5, 6, 7}));
  held = {3, 4, 5, 6};
  order.begin(3, {3});
  order.end(3);
  EXPECT_TRUE(due().empty()) << "the end is in sight, but not near";
  order.begin(4, {4});
  order.end(4);
  EXPECT_EQ(due(), Stripes({7})) << "fewer than half are missing, and needed soon";
}

TEST(GatherOrder, WhereNothingIsKnownWhatWasUsedLastIsKept) {
  GatherOrder order(3);
  order.begin_run("train");
  for (const StripeId layer : {0u, 1u, 2u, 3u}) {
    order.begin(layer, {layer});
    order.end(layer);
  }
  EXPECT_EQ(wanted(order), Stripes({3, 2, 1}));
  order.begin(9, {2, 7});
  EXPECT_EQ(wanted(order), Stripes({2, 7, 3}));
}

// The next use is not known where the program has left every known way; it is again when it is
// back.
TEST(GatherOrder, AnUnknownWayIsLearned) {
  GatherOrder order(2);
  run(order, {0, 1, 2, 3});
  order.begin_run("train");
  order.begin(0, {0});
  order.end(0);
  order.begin(9, {9});
  EXPECT_EQ(wanted(order), Stripes({9, 0}));
  order.end(9);
  EXPECT_EQ(wanted(order), Stripes({9, 0}));
  order.begin(2, {2});
  EXPECT_EQ(wanted(order), Stripes({2, 3}));
  order.end(2);
  order.begin(3, {3});
  order.end(3);
  order.end_run();
  // Next time a rank on that way knows where it leads.
  order.begin_run("train");
  order.begin(0, {0});
  order.end(0);
  order.begin(9, {9});
  EXPECT_EQ(wanted(order), Stripes({9, 2}));
}

TEST(GatherOrder, ForgetsWhatItLearnedAndNotWhatIsOpen) {
  GatherOrder order(2);
  run(order, {0, 1});
  order.begin_run("train");
  order.begin(0, {0});
  order.forget();
  EXPECT_TRUE(order.uses(0));
  EXPECT_EQ(order.wanted().size(), 1u);
  EXPECT_TRUE(order.end(0));
  order.begin_run("train");
  EXPECT_TRUE(order.wanted().empty());
}

// Whatever the program does, a rank that does the same wants the same; what is in use is wanted,
// and beside it no more than there is room for.
TEST(GatherOrder, FollowsFromTheProgramAlone) {
  for (std::uint32_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const std::size_t most = 1 + random() % 6;
    GatherOrder one(most), other(most);
    for (int round = 0; round < 6; ++round) {
      one.begin_run("train");
      other.begin_run("train");
      Stripes open;
      for (StripeId at = 0; at < 30; ++at) {
        if (random() % 8 == 0) at += random() % 3;
        for (GatherOrder* const each : {&one, &other}) each->begin(at, {at, at / 2});
        open.push_back(at);
        while (!open.empty() && random() % 3 != 0) {
          for (GatherOrder* const each : {&one, &other}) EXPECT_TRUE(each->end(open.back()));
          open.pop_back();
        }
        ASSERT_EQ(wanted(one), wanted(other));
        const std::set<StripeId> once(one.wanted().begin(), one.wanted().end());
        EXPECT_EQ(once.size(), one.wanted().size());
        EXPECT_LE(one.wanted().size(), std::max(most, one.in_use()));
        for (const StripeId stripe : open) {
          EXPECT_TRUE(one.uses(stripe) && one.uses(stripe / 2));
        }
      }
      for (const StripeId stripe : open) {
        for (GatherOrder* const each : {&one, &other}) EXPECT_TRUE(each->end(stripe));
      }
      one.end_run();
      other.end_run();
    }
  }
}

}  // namespace
}  // namespace taco::zerocache
