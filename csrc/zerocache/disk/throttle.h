// Keeps reads and writes below a rate, for disks that others use too. Throttle decides and knows no
// clock; ThrottledQueue holds requests back until their time has come.
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/condition.h"
#include "zerocache/disk/io_queue.h"

namespace taco::zerocache {

class Throttle {
 public:
  explicit Throttle(std::uint64_t bytes_per_second) : bytes_per_second_(bytes_per_second) {}
  // When a request of so many bytes that is made now may begin: at once if the ones before it have
  // had their time. Time in which nothing was asked for is not saved up.
  Time begin(Time now, std::uint64_t bytes);

 private:
  const std::uint64_t bytes_per_second_;
  Time free_ = 0;  // when the requests so far have had their time
};

class ThrottledQueue : public IoQueue {
 public:
  ThrottledQueue(std::unique_ptr<IoQueue> queue, std::uint64_t bytes_per_second)
      : queue_(std::move(queue)), throttle_(bytes_per_second) {}
  void submit(const IoRequest& request) override;
  void complete(Duration wait, std::vector<IoCompletion>* done) override;
  void keep_busy() override;
  void wake() override;
  std::size_t open() const override { return held_back_.size() + queue_->open(); }
  std::string_view engine() const override { return queue_->engine(); }

 private:
  struct HeldBack {
    IoRequest request;
    Time begin;
  };
  void let_go(Time now);
  void sleep(Duration time);
  bool take_wake();

  const std::unique_ptr<IoQueue> queue_;
  Throttle throttle_;
  std::deque<HeldBack> held_back_;

  std::mutex mutex_;  // guards what follows
  Condition wakes_;
  bool woken_ = false;
};

}  // namespace taco::zerocache
