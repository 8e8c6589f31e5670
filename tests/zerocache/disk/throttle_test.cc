#include "zerocache/disk/throttle.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace taco::zerocache {
namespace {

TEST(Throttle, RequestsBeginWhenTheOnesBeforeHaveHadTheirTime) {
  Throttle throttle(1000);
  EXPECT_EQ(throttle.begin(5 * kSecond, 500), 5 * kSecond);
  EXPECT_EQ(throttle.begin(5 * kSecond, 1000), 5 * kSecond + kSecond / 2);
  EXPECT_EQ(throttle.begin(6 * kSecond, 1), 6 * kSecond + kSecond / 2);
}

TEST(Throttle, TimeInWhichNothingWasAskedForIsNotSavedUp) {
  Throttle throttle(1000);
  throttle.begin(0, 1000);
  EXPECT_EQ(throttle.begin(100 * kSecond, 1000), 100 * kSecond);
  EXPECT_EQ(throttle.begin(100 * kSecond, 1000), 101 * kSecond);
}

// Completes whatever is submitted at once, and remembers when that was.
class InstantQueue : public IoQueue {
 public:
  explicit InstantQueue(std::vector<Time>* begun) : begun_(begun) {}
  void submit(const IoRequest& request) override {
    begun_->push_back(monotonic_now());
    tags_.push_back(request.tag);
  }
  void complete(Duration, std::vector<IoCompletion>* done) override {
    for (const std::uint64_t tag : tags_) done->push_back({tag, Status()});
    tags_.clear();
  }
  void keep_busy() override {}
  void wake() override {}
  std::size_t open() const override { return tags_.size(); }
  std::string_view engine() const override { return "instant"; }

 private:
  std::vector<Time>* const begun_;
  std::vector<std::uint64_t> tags_;
};

IoRequest request(std::uint64_t tag, std::uint32_t bytes) {
  IoRequest request;
  request.tag = tag;
  request.bytes = bytes;
  return request;
}

TEST(ThrottledQueue, HoldsRequestsBackUntilTheirTimeHasCome) {
  std::vector<Time> begun;
  constexpr Duration kApart = 200 * kMillisecond;
  ThrottledQueue queue(std::make_unique<InstantQueue>(&begun), 5 * 4096);
  for (std::uint64_t tag = 0; tag < 4; ++tag) queue.submit(request(tag, 4096));
  EXPECT_EQ(begun.size(), 1u);
  EXPECT_EQ(queue.open(), 4u);
  std::vector<IoCompletion> done;
  while (queue.open() > 0) queue.complete(kNever, &done);
  ASSERT_EQ(done.size(), 4u);
  for (std::uint64_t tag = 0; tag < 4; ++tag) EXPECT_EQ(done[tag].tag, tag);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_GE(begun[i] - begun[0], static_cast<Duration>(i) * kApart - kMillisecond);
  }
}

TEST(ThrottledQueue, IsWokenWhileItHoldsSomethingBack) {
  std::vector<Time> begun;
  ThrottledQueue queue(std::make_unique<InstantQueue>(&begun), 1);
  std::vector<IoCompletion> done;
  queue.submit(request(0, 4096));
  queue.complete(kNever, &done);
  queue.submit(request(1, 4096));  // in more than an hour
  queue.wake();                    // before the wait
  queue.complete(kNever, &done);
  std::thread waker([&queue] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    queue.wake();
  });
  queue.complete(kNever, &done);
  waker.join();
  EXPECT_EQ(done.size(), 1u);
}

TEST(ThrottledQueue, WaitsNoLongerThanItIsTold) {
  std::vector<Time> begun;
  ThrottledQueue queue(std::make_unique<InstantQueue>(&begun), 1);
  std::vector<IoCompletion> done;
  queue.complete(kNever, &done);  // nothing is open
  queue.submit(request(0, 4096));
  queue.submit(request(1, 4096));  // in more than an hour
  queue.complete(kNever, &done);
  EXPECT_EQ(done.size(), 1u);
  queue.complete(0, &done);
  queue.complete(kMillisecond, &done);
  EXPECT_EQ(done.size(), 1u);
  EXPECT_EQ(queue.open(), 1u);
}

}  // namespace
}  // namespace taco::zerocache
