// A timer for engines whose devices cannot wake them: it goes off soon after there was traffic, and
// later the longer there has been none. So a device that must be polled costs an idle
// process one short look every two milliseconds.
//
// Owner thread only.
#pragma once

#include "base/clock.h"
#include "base/own_fd.h"
#include "base/status.h"

namespace taco::harp {

class PollAlarm {
 public:
  static constexpr Duration kShortest = 10 * kMicrosecond;
  static constexpr Duration kLongest = 2 * kMillisecond;
  // A period is this part of the time without traffic: what comes late waits but little longer.
  static constexpr Duration kShare = 8;

  // `always`: readable at all times, so that nobody sleeps.
  Status start(bool always);
  int fd() const { return fd_.get(); }

  void on_traffic(Time now) { last_traffic_ = now; }
  void on_wake() { woken_ = true; }
  // Before the owner may sleep.
  void set(Time now);

  static Duration period_after(Duration idle);

 private:
  OwnFd fd_;
  bool always_ = false;
  bool woken_ = true;
  Time last_traffic_ = 0;
  Duration set_to_ = 0;
};

}  // namespace taco::harp
