#include "harp/engine/timer_heap.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace taco::harp {
namespace {

struct Recorder {
  std::vector<int>* order;
  int id;
  Timer timer;
};

void record(Timer& timer, Time) {
  auto* recorder = static_cast<Recorder*>(timer.context);
  recorder->order->push_back(recorder->id);
}

TEST(TimerHeapTest, timers_run_in_the_order_of_their_deadlines) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  std::vector<int> order;
  std::vector<Recorder> recorders(200);
  TimerHeap heap;
  for (int i = 0; i < 200; ++i) {
    recorders[i] = {&order, i, {record, &recorders[i]}};
    heap.arm(recorders[i].timer, 1'000 + random() % 500);
  }
  // Move half of them, drop a quarter.
  std::vector<std::pair<Time, int>> expected;
  for (int i = 0; i < 200; ++i) {
    if (i % 2 == 0) heap.arm(recorders[i].timer, 1'000 + random() % 500);
    if (i % 4 == 1) {
      heap.disarm(recorders[i].timer);
    } else {
      expected.emplace_back(recorders[i].timer.deadline, i);
    }
  }
  EXPECT_EQ(heap.run_due(999), 0);
  EXPECT_EQ(heap.run_due(2'000), 150);
  EXPECT_TRUE(heap.empty());
  std::vector<Time> deadlines;
  std::vector<Time> wanted;
  std::vector<Time> by_id(200);
  for (const auto& [deadline, id] : expected) {
    wanted.push_back(deadline);
    by_id[id] = deadline;
  }
  for (int id : order) deadlines.push_back(by_id[id]);
  std::sort(wanted.begin(), wanted.end());
  EXPECT_EQ(deadlines, wanted);
}

TEST(TimerHeapTest, a_timer_that_re_arms_itself_for_the_past_does_not_hold_the_loop) {
  TimerHeap heap;
  struct Again {
    TimerHeap* heap;
    int runs = 0;
  } again{&heap};
  Timer timer{[](Timer& self, Time now) {
                auto* state = static_cast<Again*>(self.context);
                ++state->runs;
                state->heap->arm(self, now - 1);
              },
              &again};
  heap.arm(timer, 10);
  EXPECT_EQ(heap.run_due(20), 1);
  EXPECT_EQ(heap.run_due(20), 1);
  EXPECT_EQ(again.runs, 2);
}

TEST(TimerHeapTest, a_callback_may_disarm_another_due_timer) {
  TimerHeap heap;
  struct State {
    TimerHeap* heap;
    Timer* victim;
  } state{&heap, nullptr};
  Timer victim{[](Timer&, Time) { FAIL() << "was disarmed"; }, nullptr};
  Timer killer{[](Timer& self, Time) {
                 auto* s = static_cast<State*>(self.context);
                 s->heap->disarm(*s->victim);
               },
               &state};
  state.victim = &victim;
  heap.arm(killer, 5);
  heap.arm(victim, 6);
  EXPECT_EQ(heap.run_due(10), 1);
  EXPECT_EQ(victim.heap_index, SIZE_MAX);
}

TEST(TimerHeapTest, a_stall_moves_every_deadline) {
  TimerHeap heap;
  int ran = 0;
  Timer timer{[](Timer& self, Time) { ++*static_cast<int*>(self.context); }, &ran};
  heap.arm(timer, 100);
  heap.postpone_all(50);
  EXPECT_EQ(heap.next_deadline(), 150);
  heap.run_due(149);
  EXPECT_EQ(ran, 0);
  heap.run_due(150);
  EXPECT_EQ(ran, 1);
}

TEST(TimerHeapTest, arming_for_never_disarms) {
  TimerHeap heap;
  Timer timer{[](Timer&, Time) {}, nullptr};
  heap.arm(timer, 1);
  heap.arm(timer, kNever);
  EXPECT_TRUE(heap.empty());
}

TEST(TimerHeapTest, a_timer_of_another_heap_is_noticed) {
  if (!kAssertions) GTEST_SKIP() << "assertions are off in this build";
  TimerHeap heap, other;
  Timer timer{[](Timer&, Time) {}, nullptr};
  heap.arm(timer, 1);
  EXPECT_DEATH(other.arm(timer, 2), "it is armed in another heap");
  EXPECT_DEATH(other.disarm(timer), "it is armed in another heap");
}

}  // namespace
}  // namespace taco::harp
