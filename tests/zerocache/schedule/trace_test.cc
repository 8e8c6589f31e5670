// Traces, and runs that follow them: straight on, around, out and back.
#include "zerocache/schedule/trace.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "support/zerocache_programs.h"
#include "zerocache/pages/page_heap.h"
#include "zerocache/schedule/follower.h"

namespace taco::zerocache {
namespace {

Use use_of(OperatorKey key) { return {key, 10, {{static_cast<PageId>(key)}}}; }

std::vector<OperatorKey> keys_of(const Trace& trace) {
  std::vector<OperatorKey> keys;
  for (const Use& use : trace.uses()) keys.push_back(use.key);
  return keys;
}

// The place in the trace that each operator of a run was taken for.
std::vector<Position> places_in_run(Follower& follower, const std::vector<OperatorKey>& keys) {
  std::vector<Position> places;
  follower.begin_run();
  for (const OperatorKey key : keys) {
    const Use use = use_of(key);
    places.push_back(follower.begin(key, use.accesses).at);
    follower.took(use.compute);
  }
  follower.end_run();
  return places;
}

Follower learned(const std::vector<OperatorKey>& keys) {
  Follower follower;
  places_in_run(follower, keys);
  return follower;
}

std::vector<OperatorKey> count_to(OperatorKey end) {
  std::vector<OperatorKey> keys;
  for (OperatorKey key = 0; key < end; ++key) keys.push_back(key);
  return keys;
}

constexpr Position kOff = kNoPosition;

TEST(Trace, TheNextUseIsTheFirstFromThatPositionOn) {
  std::mt19937_64 random(1);
  std::vector<Use> uses;
  for (int i = 0; i < 300; ++i) {
    Use use{random() % 7, 5, {}};
    for (PageId page = 0; page < 20; ++page) {
      if (random() % 10 == 0) use.accesses.push_back({page});
    }
    uses.push_back(use);
  }
  const Trace trace(uses);
  for (PageId page = 0; page < 25; ++page) {
    Position next = kNeverUsed;
    for (Position at = trace.size(); at-- > 0;) {
      for (const Access& access : trace.at(at).accesses) {
        if (access.page == page) next = at;
      }
      ASSERT_EQ(trace.next_use(page, at), next) << "page " << page << " from " << at;
    }
    EXPECT_EQ(trace.next_use(page, trace.size()), kNeverUsed);
  }
  EXPECT_EQ(trace.start_of(trace.size()), 300 * 5);
}

TEST(Trace, AnEmptyOneHasNoUses) {
  const Trace trace;
  EXPECT_EQ(trace.size(), 0);
  EXPECT_EQ(trace.next_use(3, 0), kNeverUsed);
  EXPECT_TRUE(trace.places_of(1).empty());
}

TEST(PageHeap, TheGreatestIsOnTopWhateverChanges) {
  constexpr std::size_t kPages = 200;
  std::mt19937_64 random(2);
  PageHeap heap;
  heap.resize(kPages);
  std::map<PageId, std::int64_t> keys;
  for (int i = 0; i < 20000; ++i) {
    const auto page = static_cast<PageId>(random() % kPages);
    if (random() % 3 == 0) {
      heap.remove(page);
      keys.erase(page);
    } else {
      keys[page] = static_cast<std::int64_t>(random() % 1000);
      heap.set(page, keys[page]);
    }
    ASSERT_EQ(heap.size(), keys.size());
    ASSERT_EQ(heap.contains(page), keys.count(page) == 1);
    if (keys.empty()) continue;
    const auto greatest = std::max_element(
        keys.begin(), keys.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
    ASSERT_EQ(heap.top_key(), greatest->second);
    ASSERT_EQ(heap.top(), greatest->first);
  }
}

TEST(Follower, TheFirstRunIsRecordedAndTheNextOneFollowsIt) {
  Follower follower;
  EXPECT_FALSE(follower.known());
  EXPECT_EQ(places_in_run(follower, {7, 8, 9}), (std::vector<Position>{kOff, kOff, kOff}));
  ASSERT_TRUE(follower.known());
  EXPECT_EQ(keys_of(follower.trace()), (std::vector<OperatorKey>{7, 8, 9}));
  EXPECT_EQ(follower.trace().start_of(2), 20);
  EXPECT_EQ(places_in_run(follower, {7, 8, 9}), (std::vector<Position>{0, 1, 2}));
}

TEST(Follower, AnUnknownOperatorIsPassedOverAndTheTraceGoesOn) {
  Follower follower = learned(count_to(10));
  EXPECT_EQ(places_in_run(follower, {0, 1, 2, 99, 3, 4, 5, 6, 7, 8, 9}),
            (std::vector<Position>{0, 1, 2, kOff, 3, 4, 5, 6, 7, 8, 9}));
}

TEST(Follower, AnotherExpertTakesTheUsualOnesPlace) {
  Follower follower = learned({0, 1, 20, 3, 4});
  EXPECT_EQ(places_in_run(follower, {0, 1, 25, 3, 4}), (std::vector<Position>{0, 1, kOff, 3, 4}));
}

TEST(Follower, AKnownWayAroundIsKnownFromItsFirstOperatorOn) {
  Follower follower = learned({0, 1, 20, 21, 3, 4});
  places_in_run(follower, {0, 1, 25, 26, 3, 4});
  follower.begin_run();
  for (const OperatorKey key : {0, 1}) follower.begin(key, {});
  const Follower::Step step = follower.begin(25, {});
  EXPECT_EQ(step.at, kOff);
  EXPECT_EQ(step.next, 4) << "where the detour comes back";
  ASSERT_EQ(follower.rest_of_detour().size(), 1u);
  EXPECT_EQ(follower.rest_of_detour()[0].key, 26u);
  EXPECT_EQ(follower.begin(26, {}).at, kOff);
  EXPECT_TRUE(follower.rest_of_detour().empty());
  EXPECT_EQ(follower.begin(3, {}).at, 4);
}

// Far away, one operator could be a mere namesake; two in a row are believed.
TEST(Follower, AnEarlyExitIsBelievedOnceTwoOperatorsAgree) {
  const std::vector<OperatorKey> keys = count_to(200);
  Follower follower = learned(keys);
  EXPECT_EQ(places_in_run(follower, {0, 1, 150, 151, 152}),
            (std::vector<Position>{0, 1, kOff, 151, 152}));
  // Next time the first one is enough.
  EXPECT_EQ(places_in_run(follower, {0, 1, 150, 151, 152}),
            (std::vector<Position>{0, 1, 150, 151, 152}));
}

TEST(Follower, OneMoreRoundIsFollowedBack) {
  Follower follower = learned(count_to(100));
  std::vector<OperatorKey> keys = count_to(90);
  for (OperatorKey key = 10; key < 100; ++key) keys.push_back(key);
  const std::vector<Position> places = places_in_run(follower, keys);
  EXPECT_EQ(places[90], kOff);
  for (std::size_t i = 91; i < keys.size(); ++i) {
    EXPECT_EQ(places[i], static_cast<Position>(keys[i])) << i;
  }
  EXPECT_EQ(keys_of(follower.trace()), count_to(100)) << "a loop is no new trace";
}

TEST(Follower, WhatHasBecomeUsualIsTheTraceAndTheOldWayIsNotForgotten) {
  Follower follower = learned({0, 1, 20, 3, 4});
  for (int run = 0; run < 2; ++run) places_in_run(follower, {0, 1, 25, 3, 4});
  EXPECT_EQ(keys_of(follower.trace()), (std::vector<OperatorKey>{0, 1, 25, 3, 4}));
  follower.begin_run();
  for (const OperatorKey key : {0, 1}) follower.begin(key, {});
  EXPECT_EQ(follower.begin(20, {}).next, 3) << "the old way is a known detour";
  EXPECT_EQ(follower.begin(3, {}).at, 3);
}

TEST(Follower, AShorterProgramBecomesTheTraceTooInTheEnd) {
  const std::vector<OperatorKey> shorter{0, 1, 2, 15, 16, 17, 18, 19};
  Follower follower = learned(count_to(20));
  for (int run = 0; run < 5; ++run) places_in_run(follower, shorter);
  EXPECT_EQ(keys_of(follower.trace()), count_to(20)) << "what was there may come again";
  places_in_run(follower, shorter);
  EXPECT_EQ(keys_of(follower.trace()), shorter);
  places_in_run(follower, count_to(20));
  EXPECT_EQ(keys_of(follower.trace()), count_to(20)) << "to know of more costs little";
}

TEST(Follower, WhatTheFirstRunLeftOutIsInTheTraceAfterTheSecond) {
  Follower follower = learned({0, 1, 2, 5, 6});
  places_in_run(follower, count_to(7));
  EXPECT_EQ(keys_of(follower.trace()), count_to(7));
}

TEST(Follower, ARunThatNeverBeganTeachesNothing) {
  Follower follower = learned(count_to(5));
  for (int run = 0; run < 5; ++run) places_in_run(follower, {});
  EXPECT_EQ(keys_of(follower.trace()), count_to(5));
}

// Whatever a program does, the follower finds it again, and its trace is one of those that were run
// or a mixture of them: no operator is made up or multiplied.
TEST(Follower, AnySequenceIsSurvived) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    std::mt19937_64 random(seed);
    Follower follower = learned(count_to(60));
    for (int run = 0; run < 20; ++run) {
      std::vector<OperatorKey> keys;
      for (OperatorKey key = 0; key < 60; ++key) {
        const std::uint64_t draw = random() % 30;
        if (draw == 0) keys.push_back(100 + random() % 5);
        if (draw == 1) key += random() % 20;
        if (draw == 2) key -= std::min<OperatorKey>(key, random() % 5);
        keys.push_back(key);
      }
      places_in_run(follower, keys);
      ASSERT_LE(follower.trace().size(), 1000) << "seed " << seed;
    }
    // Left in peace, it learns the program within a few runs.
    for (int run = 0; run < 4; ++run) places_in_run(follower, count_to(60));
    std::size_t known = 0;
    for (const Position place : places_in_run(follower, count_to(60))) known += place != kOff;
    ASSERT_GE(known, 58u) << "seed " << seed;
  }
}

}  // namespace
}  // namespace taco::zerocache
