#include "harp/session/send_queue.h"

#include <gtest/gtest.h>

#include <deque>

namespace taco::harp {
namespace {

// One of these splits into two pieces.
constexpr std::size_t kSegment = 1472;

class SendQueueTest : public ::testing::Test {
 protected:
  ~SendQueueTest() override {
    for (BulkSend& send : sends_) queue_.remove(send);
  }
  BulkSend& message(std::uint64_t group, std::size_t segments) {
    SendRequest& request = requests_.emplace_back();
    request.key.group = group;
    request.bytes = segments * kSegment;
    BulkSend& send = sends_.emplace_back();
    send.start(request, {}, kSegment, static_cast<std::uint32_t>(sends_.size()));
    queue_.add(send);
    return send;
  }
  // A unit of whatever comes next leaves.
  BulkSend* serve() {
    BulkSend* const send = queue_.next();
    if (send == nullptr) return nullptr;
    bool again = false;
    send->take(1, again);
    if (!again) queue_.on_served(*send);
    if (send->has_work()) {
      queue_.add(*send);
    } else {
      queue_.remove(*send);
    }
    return send;
  }
  // Has lost that segment.
  void lose(BulkSend& send, std::uint32_t segment) {
    send.lose(segment, 1, true);
    queue_.add(send);
  }

  std::deque<SendRequest> requests_;
  std::deque<BulkSend> sends_;
  SendQueue queue_;
};

TEST_F(SendQueueTest, GroupsTakeTurnsAndWithinAGroupTheOldestGoesFirst) {
  BulkSend& a = message(7, 2);
  BulkSend& b = message(7, 1);
  BulkSend& c = message(3, 2);
  EXPECT_EQ(queue_.unsent(), 5u);
  EXPECT_EQ(serve(), &c);
  EXPECT_EQ(serve(), &a);
  EXPECT_EQ(serve(), &c);
  EXPECT_EQ(serve(), &a);
  EXPECT_TRUE(queue_.has_one());
  EXPECT_EQ(serve(), &b);
  EXPECT_TRUE(queue_.empty());
  EXPECT_EQ(queue_.unsent(), 0u);
  EXPECT_EQ(serve(), nullptr);
}

TEST_F(SendQueueTest, WhatIsLostGoesBeforeWhateverHasNotLeft) {
  BulkSend& a = message(1, 3);
  BulkSend& b = message(2, 3);
  ASSERT_EQ(serve(), &a);
  ASSERT_EQ(serve(), &b);
  ASSERT_EQ(serve(), &a);
  lose(a, 1);
  lose(b, 0);
  lose(a, 0);
  EXPECT_EQ(serve(), &a);
  EXPECT_EQ(serve(), &a);
  EXPECT_EQ(serve(), &b);
  EXPECT_EQ(serve(), &b) << "its group's turn again";
  EXPECT_EQ(serve(), &a);
}

TEST_F(SendQueueTest, OneThatComesBackFromItsLossesGoesBeforeYoungerOnes) {
  BulkSend& old = message(1, 3);
  message(1, 3);
  ASSERT_EQ(serve(), &old);
  lose(old, 0);
  EXPECT_EQ(serve(), &old);
  EXPECT_EQ(serve(), &old);
  EXPECT_EQ(queue_.passed_by(), 0u);
}

TEST_F(SendQueueTest, SplitMessagesWaitForTheOneInPieces) {
  BulkSend& a = message(1, 1);
  BulkSend& b = message(2, 1);
  BulkSend& c = message(3, 3);
  for (BulkSend* send : {&a, &b}) {
    send->split();
    const bool may = queue_.may_leave_in_pieces(*send);
    EXPECT_EQ(may, send == &a);
    queue_.add(*send);
  }
  EXPECT_EQ(serve(), &a);
  EXPECT_EQ(serve(), &c);
  EXPECT_EQ(serve(), &a);
  EXPECT_TRUE(queue_.retire(a)) << "another one may begin";
  EXPECT_EQ(serve(), &b);
  EXPECT_EQ(serve(), &c);
  EXPECT_FALSE(queue_.may_leave_in_pieces(c));
  EXPECT_FALSE(queue_.retire(b));
}

// A session may end after the requests that were under way in it.
TEST_F(SendQueueTest, AMessageLeavesWhoseRequestIsGone) {
  BulkSend& send = message(1, 2);
  send.request = nullptr;
  queue_.remove(send);
  EXPECT_TRUE(queue_.empty());
}

// Every choice takes the same few steps, however many messages wait.
TEST_F(SendQueueTest, ChoosingTakesNoWalkOverThoseThatWait) {
  constexpr std::size_t kMany = 20'000;
  for (std::size_t i = 0; i < kMany; ++i) message(i % 8, 2);
  std::size_t served = 0;
  while (BulkSend* const send = serve()) {
    if (++served % 3 == 0 && send->next > 0) lose(*send, 0);
    if (served > 10 * kMany) break;
  }
  EXPECT_GE(served, 2 * kMany);
  EXPECT_LE(queue_.passed_by(), served);
}

}  // namespace
}  // namespace taco::harp
