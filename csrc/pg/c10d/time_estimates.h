// Threads that ask how long collectives would take: between begin() and end() what a thread starts
// in the group is added up, by the planner's model, and not run. Any thread.
#pragma once

#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

namespace taco::pg {

class TimeEstimates {
 public:
  // Forgets one of this thread that an error has left open.
  void begin() {
    std::lock_guard lock(mutex_);
    seconds_[std::this_thread::get_id()] = 0;
    any_.store(true, std::memory_order_release);
  }
  // The sum in seconds; nothing: this thread has begun none.
  std::optional<double> end() {
    std::lock_guard lock(mutex_);
    const auto mine = seconds_.extract(std::this_thread::get_id());
    any_.store(!seconds_.empty(), std::memory_order_release);
    return mine ? std::optional(mine.mapped()) : std::nullopt;
  }
  // The calling thread is between the two.
  bool here() {
    if (!any_.load(std::memory_order_acquire)) return false;
    std::lock_guard lock(mutex_);
    return seconds_.contains(std::this_thread::get_id());
  }
  void add(double seconds) {
    std::lock_guard lock(mutex_);
    seconds_[std::this_thread::get_id()] += seconds;
  }

 private:
  std::atomic<bool> any_{false};  // the usual group never takes the lock
  std::mutex mutex_;
  std::map<std::thread::id, double> seconds_;
};

}  // namespace taco::pg
