#include "zerocache/ranks/agreement.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/gathering_threads.h"

namespace taco::zerocache {
namespace {

using testing::GatheringThreads;

TEST(Agreement, IsThatAllIsWellWhereItIsEverywhere) {
  for (const int ranks : {1, 2, 5}) {
    GatheringThreads group(ranks);
    group.run([](Collectives& own) { EXPECT_TRUE(agree(own, Status()).ok()); });
  }
}

TEST(Agreement, AFailureOfSomeIsAFailureOfAllThatNamesTheFirst) {
  GatheringThreads group(4);
  group.run([](Collectives& own) {
    Status here;
    if (own.rank() == 1) here = Status(Code::kInvalidArgument, "no disk");
    if (own.rank() == 3) here = Status(Code::kResource, "no memory");
    const Status found = agree(own, here);
    EXPECT_EQ(found.code(), own.rank() == 3 ? Code::kResource : Code::kInvalidArgument);
    const std::string expected[] = {"rank 1: no disk", "no disk", "rank 1: no disk", "no memory"};
    EXPECT_EQ(found.message(), expected[own.rank()]);
  });
}

TEST(Agreement, ALongMessageIsCutOff) {
  GatheringThreads group(2);
  group.run([](Collectives& own) {
    const std::string text(5000, 'x');
    const Status found = agree(own, own.rank() == 0 ? Status(Code::kResource, text) : Status());
    if (own.rank() == 0) {
      EXPECT_EQ(found.message(), text);
    } else {
      EXPECT_EQ(found.message(), "rank 0: " + std::string(1016, 'x'));
    }
  });
}

TEST(Agreement, WhatAllGiveIsKnownToAll) {
  GatheringThreads group(3);
  group.run([](Collectives& own) {
    // Messages of 0, 7 and 14 bytes.
    const std::vector<std::byte> mine(7 * static_cast<std::size_t>(own.rank()),
                                      static_cast<std::byte>(own.rank()));
    const auto found = gather(own, mine);
    ASSERT_TRUE(found.ok());
    ASSERT_EQ(found.value().size(), 3u);
    for (std::size_t rank = 0; rank < 3; ++rank) {
      EXPECT_EQ(found.value()[rank],
                std::vector<std::byte>(7 * rank, static_cast<std::byte>(rank)));
    }
    const auto nothing = gather(own, {});
    ASSERT_TRUE(nothing.ok());
    EXPECT_EQ(nothing.value(), std::vector<std::vector<std::byte>>(3));
  });
}

TEST(Agreement, AGroupThatFailsIsAFailure) {
  GatheringThreads group(2);
  group.fail_at(1);
  group.run([](Collectives& own) {
    EXPECT_TRUE(agree(own, Status()).ok());
    EXPECT_EQ(agree(own, Status()).code(), Code::kPeerLost);
    EXPECT_EQ(gather(own, {}).status().code(), Code::kPeerLost);
    EXPECT_EQ(agree(own, Status(Code::kResource, "no memory")).message(), "no memory");
  });
}

}  // namespace
}  // namespace taco::zerocache
