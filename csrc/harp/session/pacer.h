// When the next run of one path may leave: what the window allows is spread over a round trip, in
// quanta of one super-packet, so that it does not arrive as one burst in a queue that is shorter.
//
// A sender is often late, because a core was busy elsewhere; what it has missed meanwhile may then
// leave at once, up to a part of the round trip.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/clock.h"

namespace taco::harp {

class Pacer {
 public:
  // The part of a round trip whose packets may leave at once after a pause.
  static constexpr double kMaxMissed = 0.125;

  // May a run leave? If not, it waits until deadline().
  bool admits(Time now) {
    waits_ = now < departs_;
    return !waits_;
  }
  Time deadline() const { return waits_ ? departs_ : kNever; }
  // True: what has waited may leave.
  bool on_timer(Time now) {
    if (now < deadline()) return false;
    waits_ = false;
    return true;
  }
  // So many packets leave, at `rate` windows of `window` packets in a round trip; 0: unpaced.
  void on_sent(Time now, std::uint32_t packets, double rate, double window, Duration round_trip) {
    if (rate == 0) return;
    const auto turn = static_cast<double>(round_trip);
    const Time missed = now - static_cast<Duration>(kMaxMissed * turn);
    departs_ = std::max(departs_, missed) + static_cast<Duration>(turn * packets / (rate * window));
  }

 private:
  Time departs_ = 0;
  bool waits_ = false;
};

}  // namespace taco::harp
