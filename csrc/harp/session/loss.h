// Time as a sender sees it: round trips, how long to wait before doubting silence, how much
// reordering to tolerate. No retransmission happens on a timer alone: a timer sends a probe (a
// ping), and only the acknowledgement of something later shows what is missing.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/clock.h"

namespace taco::harp {

// The least round trip is what the path itself takes, from which the congestion control tells what
// queues add. Any sample may lower it. Paths change, so it also expires, after one to two epochs;
// but what takes its place must not be the queue that we keep standing ourselves, or each epoch
// would add another queue to the last: an epoch's least counts only if the epoch has a sample of a
// packet that had next to nothing of ours before it (`alone`). A sender that never lets up gives no
// such sample, and keeps the old value. Where that is too low by now, the queue seems long, and the
// congestion control closes the window until packets are nearly alone; then the new value is found.
//
// Acknowledgements wait in queues too, behind what their sender has sent itself: such a queue is no
// reason to send less. So the peer says when a packet arrived. Its clock and ours have nothing to
// do with each other, but differences between packets tell what the way there has added to the
// shortest one. As clocks drift apart, that of the shortest is held to what the round trip allows:
// no queue there is longer than all queues together. And it shrinks by kDrift, or a peer's clock
// that is slow would hide a queue that never empties. Where that shrinks too fast, and no round
// trip is short for long, what acknowledgements wait for counts too in the end.
class RoundTrip {
 public:
  // `delay` is what the peer says it held the acknowledgement back.
  // `one_way_us`: its arrival by the peer's clock less its departure by ours, modulo 2^32.
  void on_sample(Time now, Duration rtt, Duration delay, std::uint32_t one_way_us, bool alone);
  // The path goes by another way from now on. The time that one takes when it is empty has to be
  // learned; until then, what answers have taken is the best guess.
  void on_new_way() {
    min_ = epoch_least_ = 0;
    epoch_alone_ = false;
    queue_us_ = 0;
  }
  bool has_sample() const { return smoothed_ > 0; }
  Duration smoothed() const { return has_sample() ? smoothed_ : kInitial; }
  Duration latest() const { return latest_; }
  Duration least() const { return min_; }
  // The part of the latest sample that queues on the way there have added.
  Duration queue() const { return queue_us_ * kMicrosecond; }
  Duration largest_delay() const { return largest_delay_; }

  // The time within which an answer comes, as a rule, if it is not held back.
  Duration answer_time() const { return smoothed() + 4 * variation_; }
  // How long to wait for an acknowledgement before probing, `backoff` probes already unanswered.
  Duration probe_timeout(std::uint32_t backoff) const;

  static constexpr Duration kInitial = 20 * kMillisecond;
  static constexpr Duration kFloor = 4 * kMillisecond;  // busy cores delay answers by this much
  static constexpr Duration kCeiling = 500 * kMillisecond;
  static constexpr Duration kEpoch = 10 * kSecond;
  static constexpr std::uint32_t kDrift = 10;  // ms for one us: 100 us a second
  // For so long a peer holds an acknowledgement back; beyond that, it was kept from its core.
  static constexpr Duration kMaxDelay = kMillisecond;

 private:
  void split(Time now, std::uint32_t one_way_us, bool first);

  Duration smoothed_ = 0, variation_ = 0, latest_ = 0, min_ = 0;
  Duration largest_delay_ = 0;
  Duration epoch_least_ = 0;  // of this epoch; 0: no sample
  Time epoch_end_ = 0;
  std::uint32_t queue_us_ = 0;
  std::uint32_t shortest_ = 0;  // one_way_us of a way without queues
  std::uint32_t split_ms_ = 0;  // when that has shrunk last
  bool epoch_alone_ = false;
};

// How long a hole may persist after something later was acknowledged. Widened by every spurious
// loss, narrowed again slowly.
class ReorderWindow {
 public:
  Duration get(const RoundTrip& rtt) const {
    return std::clamp(rtt.smoothed() / 4 * multiplier_, kFloor * multiplier_, kCeiling);
  }
  void on_spurious() { multiplier_ = std::min(2 * multiplier_, 64); }
  void on_quiet_round() { multiplier_ = std::max(multiplier_ - 1, 1); }

  static constexpr Duration kFloor = kMillisecond;
  static constexpr Duration kCeiling = 100 * kMillisecond;

 private:
  int multiplier_ = 1;
};

// Watches the silence of a path on which something is in flight. A tail-loss probe (RFC 8985) that
// resends nothing: what it brings is the acknowledgement that shows what is missing.
//
//   state      leads to
//   kWatching  kDue when nothing was acknowledged for the probe timeout, or somebody wants a sign
//              of life
//   kDue       kWatching, when a packet of frames that asks for an acknowledgement has left
class TailProbe {
 public:
  enum class State : std::uint8_t { kWatching, kDue };

  State state() const { return state_; }
  bool due() const { return state_ == State::kDue; }
  // Probes in a row that were not answered; they are sent ever more rarely.
  std::uint32_t unanswered() const { return unanswered_; }
  // `patience`: as if so many more had not been answered.
  Time deadline(const RoundTrip& rtt, std::uint32_t patience = 0) const {
    return due() ? kNever : base_ + rtt.probe_timeout(unanswered_ + patience);
  }

  void request() { state_ = State::kDue; }
  // True: one has become due.
  bool on_timer(const RoundTrip& rtt, Time now, std::uint32_t patience = 0) {
    if (now < deadline(rtt, patience)) return false;
    doubt(now);
    return true;
  }
  // There is another reason to ask than silence.
  void doubt(Time now) {
    ++unanswered_;
    request();
    restart(now);
  }
  void on_sent() { state_ = State::kWatching; }
  // Anything has left that asks for an acknowledgement; but a ping does not put off the doubt about
  // what left before it, or a path that is pinged often enough would never be in doubt.
  void restart(Time now) { base_ = now; }
  void on_acknowledged(Time now) {
    unanswered_ = 0;
    restart(now);
  }
  void on_gap(Duration gap, Time now) { base_ = std::min(base_ + gap, now); }

 private:
  State state_ = State::kWatching;
  std::uint32_t unanswered_ = 0;
  Time base_ = 0;
};

}  // namespace taco::harp
