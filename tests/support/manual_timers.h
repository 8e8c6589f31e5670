// A Transport of which only the clock and the timers work, moved by hand: for machines that know
// nothing else of it.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "harp/transport.h"

namespace taco::testing {

class ManualTimers final : public harp::Transport {
 public:
  // Expiries on the way happen in order, each at its own time.
  void advance(Duration duration) {
    const Time until = now_ + duration;
    while (harp::Timer* next = earliest()) {
      if (next->deadline > until) break;
      now_ = std::max(now_, next->deadline);
      disarm_st(*next);
      next->on_expiry(*next, now_);
    }
    now_ = until;
  }
  std::size_t armed() const { return armed_.size(); }

  Time now_st() const override { return now_; }
  void arm_st(harp::Timer& timer, Time deadline) override {
    if (timer.heap_index == SIZE_MAX) armed_.push_back(&timer);
    timer.heap_index = 0;
    timer.deadline = deadline;
  }
  void disarm_st(harp::Timer& timer) override {
    std::erase(armed_, &timer);
    timer.heap_index = SIZE_MAX;
  }

  void send_st(harp::PeerId, harp::SendRequest&) override { std::abort(); }
  void recv_st(harp::PeerId, harp::RecvRequest&) override { std::abort(); }
  void cancel_st(harp::SendRequest&, const Status&) override { std::abort(); }
  void cancel_st(harp::RecvRequest&, const Status&) override { std::abort(); }
  void release_st(harp::Staging&) override { std::abort(); }
  bool has_unmatched_st(harp::PeerId, const harp::MessageKey&) const override { std::abort(); }
  void solicit_st(harp::PeerId, const harp::MessageKey&) override { std::abort(); }
  void forget_group_st(std::uint64_t) override { std::abort(); }
  void notify_st(harp::PeerId, std::span<const std::byte>) override { std::abort(); }
  bool is_local_st(harp::PeerId) const override { std::abort(); }
  Status loss_st(harp::PeerId) const override { std::abort(); }
  bool is_idle_st(harp::PeerId) const override { std::abort(); }

 private:
  harp::Timer* earliest() const {
    const auto first = std::ranges::min_element(armed_, {}, &harp::Timer::deadline);
    return first == armed_.end() ? nullptr : *first;
  }

  Time now_ = 1'000 * kSecond;
  std::vector<harp::Timer*> armed_;
};

}  // namespace taco::testing
