#include "base/condition.h"

#include <gtest/gtest.h>

#include <chrono>
#include <mutex>
#include <thread>
#include <vector>

namespace taco {
namespace {

// Two threads hand a turn to each other: each waits without the lock, or the other could never take
// it, and holds it when the wait is over.
TEST(Condition, LetsGoOfTheLockWhileItWaitsAndHoldsItAfterwards) {
  constexpr int kRounds = 1000;
  std::mutex mutex;
  Condition changed;
  int turn = 0;
  const auto play = [&](int parity) {
    for (int round = 0; round < kRounds; ++round) {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return turn % 2 == parity; });
      EXPECT_TRUE(lock.owns_lock());
      ++turn;
      changed.notify_one();
    }
  };
  std::thread other(play, 1);
  play(0);
  other.join();
  EXPECT_EQ(turn, 2 * kRounds);
}

TEST(Condition, WakesAllThatWait) {
  std::mutex mutex;
  Condition changed;
  int waiting = 0;
  bool open = false;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      std::unique_lock lock(mutex);
      ++waiting;
      changed.notify_all();
      while (!open) changed.wait(lock);
    });
  }
  {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return waiting == 4; });
    open = true;
    changed.notify_all();
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Condition, GivesUpWhenItsTimeIsOver) {
  std::mutex mutex;
  Condition changed;
  std::unique_lock lock(mutex);
  EXPECT_FALSE(changed.wait_for(lock, std::chrono::milliseconds(1), [] { return false; }));
  EXPECT_TRUE(lock.owns_lock());
}

}  // namespace
}  // namespace taco
