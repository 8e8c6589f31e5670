#include "harp/engine/timer_heap.h"

#include <utility>

#include "base/assert.h"

namespace taco::harp {

namespace {
constexpr std::size_t kUnarmed = SIZE_MAX;
}  // namespace

TimerHeap::~TimerHeap() {
  for (const Entry& entry : heap_) entry.timer->heap_index = kUnarmed;
}

void TimerHeap::place(std::size_t index, const Entry& entry) {
  heap_[index] = entry;
  entry.timer->heap_index = index;
}

void TimerHeap::sift_up(std::size_t index) {
  const Entry entry = heap_[index];
  while (index > 0) {
    const std::size_t parent = (index - 1) / 2;
    if (heap_[parent].deadline <= entry.deadline) break;
    place(index, heap_[parent]);
    index = parent;
  }
  place(index, entry);
}

void TimerHeap::sift_down(std::size_t index) {
  const Entry entry = heap_[index];
  for (;;) {
    std::size_t child = 2 * index + 1;
    if (child >= heap_.size()) break;
    if (child + 1 < heap_.size() && heap_[child + 1].deadline < heap_[child].deadline) ++child;
    if (entry.deadline <= heap_[child].deadline) break;
    place(index, heap_[child]);
    index = child;
  }
  place(index, entry);
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
    heap_.push_back({deadline, &timer});
    timer.heap_index = heap_.size() - 1;
    sift_up(timer.heap_index);
    return;
  }
  heap_[timer.heap_index].deadline = deadline;
  if (deadline < previous) {
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
  const Entry last = heap_.back();
  heap_.pop_back();
  if (last.timer == &timer) return;
  place(index, last);
  sift_up(index);
  sift_down(last.timer->heap_index);
}

int TimerHeap::run_due(Time now) {
  // Bounded by what was armed at the start: a callback that re-arms itself for the past must not
  // hold the loop.
  int ran = 0;
  for (std::size_t bound = heap_.size(); bound > 0 && next_deadline() <= now; --bound) {
    Timer* const timer = heap_.front().timer;
    disarm(*timer);
    timer->on_expiry(*timer, now);
    ++ran;
  }
  return ran;
}

void TimerHeap::postpone_all(Duration gap) {
  for (Entry& entry : heap_) entry.timer->deadline = entry.deadline += gap;
}

}  // namespace taco::harp
