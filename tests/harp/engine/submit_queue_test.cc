#include "harp/engine/submit_queue.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace taco::harp {
namespace {

struct Numbered : Task {
  int thread = 0, number = 0;
  void run_st(Transport&) override {}
};

TEST(SubmitQueueTest, tasks_come_out_in_the_order_of_submission) {
  SubmitQueue queue;
  std::vector<Numbered> tasks(10);
  for (int i = 0; i < 10; ++i) {
    tasks[i].number = i;
    queue.push(tasks[i]);
  }
  EXPECT_FALSE(queue.empty());
  int expected = 0;
  for (Task* task = queue.take_all(); task != nullptr; task = SubmitQueue::next(*task)) {
    EXPECT_EQ(static_cast<Numbered*>(task)->number, expected++);
  }
  EXPECT_EQ(expected, 10);
  EXPECT_TRUE(queue.empty());
  EXPECT_EQ(queue.take_all(), nullptr);
}

TEST(SubmitQueueTest, concurrent_submitters_lose_nothing_and_keep_their_own_order) {
  constexpr int kThreads = 4, kTasks = 20'000;
  SubmitQueue queue;
  std::vector<std::vector<Numbered>> tasks(kThreads);
  for (auto& mine : tasks) mine = std::vector<Numbered>(kTasks);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kTasks; ++i) {
        tasks[t][i].thread = t;
        tasks[t][i].number = i;
        queue.push(tasks[t][i]);
      }
    });
  }
  std::vector<int> next(kThreads, 0);
  int taken = 0;
  while (taken < kThreads * kTasks) {
    Task* task = queue.take_all();
    if (task == nullptr) std::this_thread::yield();
    for (; task != nullptr; task = SubmitQueue::next(*task), ++taken) {
      const auto* numbered = static_cast<Numbered*>(task);
      ASSERT_EQ(numbered->number, next[numbered->thread]++);
    }
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(queue.empty());
}

}  // namespace
}  // namespace taco::harp
