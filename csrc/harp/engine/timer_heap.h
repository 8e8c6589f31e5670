// The engine's timers: a binary heap over Timer objects that their users own. Each timer knows its
// place, so re-arming and disarming cost O(log n) and allocate nothing once the heap has grown.
//
// Token holder only.
#pragma once

#include <cstddef>
#include <vector>

#include "base/clock.h"
#include "harp/transport.h"

namespace taco::harp {

class TimerHeap {
 public:
  TimerHeap() = default;
  TimerHeap(const TimerHeap&) = delete;
  TimerHeap& operator=(const TimerHeap&) = delete;
  ~TimerHeap();  // disarms what is left, so that timers may outlive the heap

  void arm(Timer& timer, Time deadline);  // moves it when armed; kNever disarms
  void disarm(Timer& timer);              // harmless when not armed

  Time next_deadline() const { return heap_.empty() ? kNever : heap_.front().deadline; }
  bool empty() const { return heap_.empty(); }
  std::size_t size() const { return heap_.size(); }

  // Runs every timer due at `now`. A callback may arm and disarm any timer, itself included; one
  // re-armed for a time already past runs on the next call. Returns how many ran.
  int run_due(Time now);

  // After a stall of the loop: every deadline moves by `gap`, so that a stalled engine blames
  // nobody.
  void postpone_all(Duration gap);

 private:
  bool holds(const Timer& timer) const {
    return timer.heap_index < heap_.size() && heap_[timer.heap_index].timer == &timer;
  }
  // Deadlines are compared here: hardly one of thousands of timers is in the caches.
  struct Entry {
    Time deadline;
    Timer* timer;
  };
  void sift_up(std::size_t index);
  void sift_down(std::size_t index);
  void place(std::size_t index, const Entry& entry);

  std::vector<Entry> heap_;
};

}  // namespace taco::harp
