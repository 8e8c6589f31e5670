// How fast a path delivers. While there is a queue on the way, what the peer reads, by its clock,
// is what the path carries: what acknowledgements have to wait for on their way is no part of it.
// And whatever was under way when a packet left has arrived when that is acknowledged: so the path
// carries that much in a round trip at least. Of several paths none is given too little for long
// because it was slow once and is not given enough to have a queue.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/clock.h"

namespace taco::harp {

class DeliveryRate {
 public:
  // What an acknowledgement says about the newest packet that it is for.
  struct Arrival {
    std::uint64_t number = 0;
    std::uint32_t at_us = 0;      // by the peer's clock, modulo 2^32
    Duration queue = 0;           // that it has waited in, on its way
    std::uint32_t under_way = 0;  // packets, it among them, of which none is missing; 0: unknown
    Duration round_trip = 0;      // of it, and not less than usual
  };
  void on_arrival(Time now, const Arrival& arrival) {
    const auto number = static_cast<std::uint32_t>(arrival.number);
    if (since_ != 0 && static_cast<std::int32_t>(number - since_) <= 0) return;  // late news
    note_interval(now, number, arrival);
    if (is_known(now) && arrival.under_way > 0) {
      const auto us = static_cast<double>(arrival.round_trip) / kMicrosecond;
      us_ = std::min(us_, static_cast<float>(us / arrival.under_way));
    }
  }
  // Packets a nanosecond; 0: not known, or not any more.
  double rate(Time now) const { return is_known(now) ? 1 / (double{us_} * kMicrosecond) : 0; }

  static constexpr Duration kQueue = 100 * kMicrosecond;
  static constexpr std::uint32_t kPackets = 128;
  static constexpr std::uint32_t kLeastTime = 50, kMostTime = 10'000'000;  // us
  static constexpr float kNewest = 0.125F;
  static constexpr std::uint32_t kRemembered = 500;  // ms

 private:
  static std::uint32_t milliseconds(Time now) {
    return static_cast<std::uint32_t>(now / kMillisecond);
  }
  bool is_known(Time now) const { return us_ > 0 && milliseconds(now) - counted_ms_ < kRemembered; }
  void note_interval(Time now, std::uint32_t number, const Arrival& arrival) {
    const std::uint32_t packets = number - since_, elapsed_us = arrival.at_us - since_us_;
    const bool is_queued = arrival.queue >= kQueue;
    const bool is_enough = packets >= kPackets && elapsed_us >= kLeastTime;
    if (since_ != 0 && is_queued && !is_enough) return;
    if (since_ != 0 && is_queued && elapsed_us <= kMostTime) {
      count(now, static_cast<float>(elapsed_us) / static_cast<float>(packets));
    }
    since_ = is_queued ? number : 0;
    since_us_ = arrival.at_us;
  }
  // Times are averaged, not rates: what a peer's process reads all at once when it gets its core
  // back took long to come, all in all.
  void count(Time now, float us) {
    us_ = is_known(now) ? us_ + (us - us_) * kNewest : us;
    counted_ms_ = milliseconds(now);
  }

  // There is one for each path, idle ones included: so the low halves are enough.
  std::uint32_t since_ = 0;  // number of the packet that began the interval; 0: none has
  std::uint32_t since_us_ = 0;
  std::uint32_t counted_ms_ = 0;  // the end of the last one
  float us_ = 0;                  // a packet takes; 0: nothing is known yet
};

}  // namespace taco::harp
