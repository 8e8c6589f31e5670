#include "zerocache/disk/throttle.h"

#include <algorithm>
#include <chrono>

namespace taco::zerocache {

Time Throttle::begin(Time now, std::uint64_t bytes) {
  const Time begin = std::max(now, free_);
  const double seconds = static_cast<double>(bytes) / static_cast<double>(bytes_per_second_);
  free_ = begin + static_cast<Duration>(seconds * static_cast<double>(kSecond));
  return begin;
}

void ThrottledQueue::submit(const IoRequest& request) {
  const Time now = monotonic_now();
  held_back_.push_back({request, throttle_.begin(now, request.bytes)});
  let_go(now);
}

void ThrottledQueue::let_go(Time now) {
  while (!held_back_.empty() && held_back_.front().begin <= now) {
    queue_->submit(held_back_.front().request);
    held_back_.pop_front();
  }
}

void ThrottledQueue::keep_busy() {
  let_go(monotonic_now());
  queue_->keep_busy();
}

void ThrottledQueue::wake() {
  {
    std::lock_guard lock(mutex_);
    woken_ = true;
  }
  wakes_.notify_one();
  queue_->wake();
}

void ThrottledQueue::sleep(Duration time) {
  std::unique_lock lock(mutex_);
  wakes_.wait_for(lock, std::chrono::nanoseconds(time), [this] { return woken_; });
}

bool ThrottledQueue::take_wake() {
  std::lock_guard lock(mutex_);
  return std::exchange(woken_, false);
}

void ThrottledQueue::complete(Duration wait, std::vector<IoCompletion>* done) {
  Time now = monotonic_now();
  const Time end = wait == kNever ? kNever : now + wait;
  const std::size_t before = done->size();
  while (true) {
    let_go(now);
    const Time until = held_back_.empty() ? end : std::min(end, held_back_.front().begin);
    const Duration left = until == kNever ? kNever : std::max<Duration>(until - now, 0);
    if (queue_->open() > 0) {
      queue_->complete(left, done);
    } else if (!held_back_.empty() && left > 0) {
      sleep(left);
    }
    now = monotonic_now();
    if (take_wake() || done->size() > before || open() == 0 || now >= end) break;
  }
  let_go(now);
}

}  // namespace taco::zerocache
