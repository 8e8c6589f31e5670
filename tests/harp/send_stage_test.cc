#include "harp/send_stage.h"

#include "harp/matching/matcher_fixture.h"
#include "support/machine_table.h"

namespace taco::harp {
namespace {

TEST(SendStageTable, SaysWhatTheHeaderSays) {
  using enum SendStage;
  expect_table<SendStage>({{kIdle, {kKept, kFinished}},
                           {kKept, {kEager, kBulk, kFinished}},
                           {kEager, {kFinished}},
                           {kBulk, {kFinished}},
                           {kFinished, {kIdle}}});
  for (const SendStage stage : {kIdle, kKept, kEager, kBulk, kFinished}) {
    EXPECT_EQ(is_open(stage), stage == kKept || is_with_link(stage));
  }
}

using SendStageTest = MatcherTest;

TEST_F(SendStageTest, AnEagerSendIsWithTheLinkUntilItComesBack) {
  SendRequest& request = send(1, 8);
  EXPECT_TRUE(request.stage.is(SendStage::kEager));
  matcher_.send_finished(request, Status());
  EXPECT_TRUE(request.stage.is(SendStage::kFinished));
  run();
  EXPECT_TRUE(request.stage.is(SendStage::kIdle));
  EXPECT_EQ(outcome(request).calls, 1);
}

TEST_F(SendStageTest, ALargeSendIsKeptUntilItIsWanted) {
  SendRequest& request = send(1, 5000);
  EXPECT_TRUE(request.stage.is(SendStage::kKept));
  matcher_.on_want({{9, 1}, 1, 5000, {1, 1}});
  EXPECT_TRUE(request.stage.is(SendStage::kBulk));
  matcher_.send_finished(request, Status());
  run();
  EXPECT_TRUE(request.stage.is(SendStage::kIdle));
}

TEST_F(SendStageTest, ASendIsCancelledInEveryStageAndSentAnew) {
  const Status why(Code::kAborted, "test");
  SendRequest& request = send(1, 5000);
  const auto cancel = [&] {
    matcher_.cancel(request, why);
    EXPECT_TRUE(request.stage.is(SendStage::kFinished));
    matcher_.cancel(request, why);  // its completion is on its way
    run();
    EXPECT_TRUE(request.stage.is(SendStage::kIdle));
    matcher_.cancel(request, why);  // it is its owner's
    EXPECT_EQ(std::exchange(outcome(request).calls, 0), 1);
  };
  cancel();
  request.key.tag = 2;
  matcher_.send(request);
  matcher_.on_want({{9, 2}, 1, 5000, {1, 1}});
  EXPECT_TRUE(request.stage.is(SendStage::kBulk));
  cancel();
  request.key.tag = 3;
  request.bytes = 8;
  matcher_.send(request);
  EXPECT_TRUE(request.stage.is(SendStage::kEager));
  cancel();
}

TEST_F(SendStageTest, WhatIsSentToALostPeerGoesStraightToItsCompletion) {
  matcher_.on_lost(Status(Code::kPeerLost, "test"));
  SendRequest& request = send(1, 5000);
  EXPECT_TRUE(request.stage.is(SendStage::kFinished));
  host_.completions.run(nullptr);
  EXPECT_TRUE(request.stage.is(SendStage::kIdle));
  EXPECT_EQ(outcome(request).status.code(), Code::kPeerLost);
}

TEST_F(SendStageTest, SendingWhatIsOpenIsABugOfTheOwner) {
  if (!kAssertions) GTEST_SKIP() << "assertions are off in this build";
  SendRequest& request = send(1, 5000);
  EXPECT_DEATH(matcher_.send(request), "does not lead to");
}

}  // namespace
}  // namespace taco::harp
