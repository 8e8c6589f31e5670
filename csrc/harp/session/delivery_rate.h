// How fast a path delivers. While there is a queue on the way, what the peer reads, by its clock,
// is what the path carries: what acknowledgements have to wait for on their way is no part of it.
// And what was under way when a run had left takes about a round trip to arrive, so that the path
// can be expected to carry as much: it may be more than it does, as where an acknowledgement comes
// in the middle of a run, but of several paths none is given too little for long because it was
// slow once, and is not given enough to have a queue.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/clock.h"

namespace taco::harp {

class DeliveryRate {
 public:
  // The words of an acknowledgement about the newest packet that it is for.
  struct Arrival {
    std::uint64_t number = 0;
    std::uint32_t at_us = 0;      // by the peer's clock, modulo 2^32
    Duration queue = 0;           // that it has waited in, on its way
    std::uint32_t under_way = 0;  // packets, when the run that it belongs to had left
    Duration round_trip = 0;      // of it, and not less than usual
  };
  void on_arrival(Time now, const Arrival& arrival) {
    const auto number = static_cast<std::uint32_t>(arrival.number);
    if (since_ != 0 && static_cast<std::int32_t>(number - since_) <= 0) return;  // late news
    note_interval(now, number, arrival);
    if (is_known(now) && arrival.round_trip > 0) {
      const double carried = arrival.under_way * 1e3 / static_cast<double>(arrival.round_trip);
      rate_ = std::max(rate_, static_cast<float>(carried));
    }
  }
  // Packets a nanosecond; 0: not known, or not any more.
  double rate(Time now) const { return is_known(now) ? double{rate_} / kMicrosecond : 0; }

  static constexpr Duration kQueue = 100 * kMicrosecond;
  static constexpr std::uint32_t kPackets = 128;
  static constexpr std::uint32_t kMinTime = 50, kMaxTime = 10'000'000;  // us
  static constexpr float kNewest = 0.125F;
  static constexpr std::uint32_t kRemembered = 500;  // ms

 private:
  static std::uint32_t milliseconds(Time now) {
    return static_cast<std::uint32_t>(now / kMillisecond);
  }
  bool is_known(Time now) const {
    return rate_ > 0 && milliseconds(now) - counted_ms_ < kRemembered;
  }
  void note_interval(Time now, std::uint32_t number, const Arrival& arrival) {
    const std::uint32_t packets = number - since_, elapsed_us = arrival.at_us - since_us_;
    const bool is_queued = arrival.queue >= kQueue, goes_on = since_ != 0 && is_queued;
    if (goes_on && (packets < kPackets || elapsed_us < kMinTime)) return;
    if (goes_on && elapsed_us <= kMaxTime) {
      count(now, static_cast<float>(packets) / static_cast<float>(elapsed_us));
    }
    since_ = is_queued ? number : 0;
    since_us_ = arrival.at_us;
  }
  void count(Time now, float seen) {
    rate_ = is_known(now) ? rate_ + (seen - rate_) * kNewest : seen;
    counted_ms_ = milliseconds(now);
  }

  // There is one for each path, idle ones included: so the low halves are enough.
  std::uint32_t since_ = 0;  // number of the packet that began the interval; 0: none has
  std::uint32_t since_us_ = 0;
  std::uint32_t counted_ms_ = 0;  // the end of the last one
  float rate_ = 0;                // packets a microsecond; 0: nothing is known yet
};

}  // namespace taco::harp
