#include "harp/engine/timer_heap.h"

#include <utility>

#include "base/assert.h"

namespace taco::harp {

namespace {
constexpr std::size_t kUnarmed = SIZE_MAX;
}  // namespace

TimerHeap::~TimerHeap() {
  for (Timer* timer : heap_) timer->heap_index = kUnarmed;
}

void TimerHeap::place(std::size_t index, Timer* timer) {
  heap_[index] = timer;
  timer->heap_index = index;
}

void TimerHeap::sift_up(std::size_t index) {
  Timer* timer = heap_[index];
  while (index > 0) {
    const std::size_t parent = (index - 1) / 2;
    if (heap_[parent]->deadline <= timer->deadline) break;
    place(index, heap_[parent]);
    index = parent;
  }
  place(index, timer);
}

void TimerHeap::sift_down(std::size_t index) {
  Timer* timer = heap_[index];
  for (;;) {
    std::size_t child = 2 * index + 1;
    if (child >= heap_.size()) break;
    if (child + 1 < heap_.size() && heap_[child + 1]->deadline < heap_[child]->deadline) ++child;
    if (timer->deadline <= heap_[child]->deadline) break;
    place(index, heap_[child]);
    index = child;
  }
  place(index, timer);
}

void TimerHeap::arm(Timer& timer, Time deadline) {
  if (deadline == kNever) {
    disarm(timer);
    return;
  }
  TACO_ASSERT(timer.heap_index == kUnarmed || holds(timer), "it is armed in another heap");
  const Time previous = timer.deadline;
  timer.deadline = deadline;
  if (timer.heap_index == kUnarmed) {
    heap_.push_back(&timer);
    timer.heap_index = heap_.size() - 1;
    sift_up(timer.heap_index);
  } else if (deadline < previous) {
    sift_up(timer.heap_index);
  } else {
    sift_down(timer.heap_index);
  }
}

void TimerHeap::disarm(Timer& timer) {
  const std::size_t index = timer.heap_index;
  if (index == kUnarmed) return;
  TACO_ASSERT(holds(timer), "it is armed in another heap");
  timer.heap_index = kUnarmed;
  timer.deadline = kNever;
  Timer* last = heap_.back();
  heap_.pop_back();
  if (last == &timer) return;
  place(index, last);
  sift_up(index);
  sift_down(last->heap_index);
}

int TimerHeap::run_due(Time now) {
  // Bounded by what was armed at the start: a callback that re-arms itself for the past must not
  // hold the loop.
  int ran = 0;
  for (std::size_t bound = heap_.size(); bound > 0 && next_deadline() <= now; --bound) {
    Timer* timer = heap_.front();
    disarm(*timer);
    timer->on_expiry(*timer, now);
    ++ran;
  }
  return ran;
}

void TimerHeap::postpone_all(Duration gap) {
  for (Timer* timer : heap_) timer->deadline += gap;
}

}  // namespace taco::harp
