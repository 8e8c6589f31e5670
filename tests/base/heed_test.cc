// Waits that heed what their thread is asked for meanwhile.
#include "base/heed.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace taco {
namespace {

// Waits for nothing, and so until the time that it is told; what it was told is in `told`.
struct InVain {
  std::vector<Time>* told;
  bool operator()(Time until) const {
    told->push_back(until);
    while (monotonic_now() < until) std::this_thread::yield();
    return false;
  }
};

TEST(HeedTest, a_thread_without_one_waits_in_one_piece) {
  std::vector<Time> told;
  const Time until = monotonic_now() + Heed::kEvery + Heed::kEvery / 2;
  const Result<bool> over = wait_and_heed(until, InVain{&told});
  ASSERT_TRUE(over.ok());
  EXPECT_FALSE(over.value());
  EXPECT_EQ(told, std::vector<Time>{until});
}

TEST(HeedTest, it_is_asked_again_and_again_in_a_wait) {
  int asked = 0;
  std::vector<Time> told;
  const Heed heed([&] { return ++asked < 3 ? Status() : Status(Code::kAborted, "enough"); });
  const Time begin = monotonic_now();
  EXPECT_FALSE(wait_and_heed(begin + kSecond * 3600, InVain{&told}).ok());
  EXPECT_EQ(asked, 3);
  ASSERT_EQ(told.size(), 3U);
  for (const Time until : told) EXPECT_LT(until, begin + kSecond * 3600);
}

TEST(HeedTest, a_wait_ends_at_its_time_however_late_it_is) {
  int asked = 0;
  std::vector<Time> told;
  const Heed heed([&] {
    ++asked;
    return Status();
  });
  const Time until = monotonic_now() + Heed::kEvery / 2;
  const Result<bool> over = wait_and_heed(until, InVain{&told});
  ASSERT_TRUE(over.ok());
  EXPECT_FALSE(over.value());
  EXPECT_EQ(told, std::vector<Time>{until});
  EXPECT_EQ(asked, 1);
}

TEST(HeedTest, one_that_is_gone_is_not_asked) {
  int asked = 0;
  {
    const Heed heed([&] {
      ++asked;
      return Status();
    });
    EXPECT_TRUE(Heed::is_here());
  }
  EXPECT_FALSE(Heed::is_here());
  std::vector<Time> told;
  (void)wait_and_heed(monotonic_now() + Heed::kEvery, InVain{&told});
  EXPECT_EQ(asked, 0);
}

TEST(HeedTest, what_it_returns_ends_a_wait_that_has_no_end) {
  std::vector<Time> told;
  const Heed heed([] { return Status(Code::kAborted, "enough"); });
  const Result<bool> over = wait_and_heed(kNever, InVain{&told});
  ASSERT_FALSE(over.ok());
  EXPECT_EQ(over.status().message(), "enough");
  EXPECT_EQ(told.size(), 1U);
}

TEST(HeedTest, a_wait_that_is_over_asks_nothing) {
  int asked = 0;
  const Heed heed([&] {
    ++asked;
    return Status(Code::kAborted, "enough");
  });
  const Result<bool> over = wait_and_heed(kNever, [](Time) { return true; });
  ASSERT_TRUE(over.ok());
  EXPECT_TRUE(over.value());
  EXPECT_EQ(asked, 0);
}

// As an engine that has stopped answers: nobody is to ask it again and again.
TEST(HeedTest, what_ends_before_its_time_never_will_be) {
  int waits = 0;
  const Heed heed([] { return Status(); });
  const Result<bool> over = wait_and_heed(kNever, [&](Time) {
    ++waits;
    return false;
  });
  ASSERT_TRUE(over.ok());
  EXPECT_FALSE(over.value());
  EXPECT_EQ(waits, 1);
}

TEST(HeedTest, it_is_its_threads_alone_and_the_innermost_counts) {
  const Heed outer([] { return Status(Code::kAborted, "outer"); });
  {
    const Heed inner([] { return Status(Code::kAborted, "inner"); });
    EXPECT_EQ(Heed::ask().message(), "inner");
    std::thread([] { EXPECT_FALSE(Heed::is_here()); }).join();
  }
  EXPECT_EQ(Heed::ask().message(), "outer");
}

}  // namespace
}  // namespace taco
