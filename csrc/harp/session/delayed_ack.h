// When one path acknowledges what has come by it: after so many packets, after a short while, or at
// once. An acknowledgement rides on any packet of frames that leaves before it is due.
//
//   state     what has come                     acknowledges
//   kNone     nothing that asks for it          when something leaves anyway
//   kDelayed  a few packets that ask for it     at deadline()
//   kDue      many, or one that is waited for   with the next packet
//
// Packets are counted as they come and judged once per burst, so in the midst of one there may be
// wants() in kNone.
#pragma once

#include <cstdint>

#include "base/clock.h"

namespace taco::harp {

class DelayedAck {
 public:
  enum class State : std::uint8_t { kNone, kDelayed, kDue };
  static constexpr std::uint32_t kEvery = 48;  // packets
  static constexpr Duration kLongest = kMillisecond;

  State state() const { return state_; }
  bool due() const { return state_ == State::kDue; }
  // Something has come that asks for an acknowledgement.
  bool wanted() const { return wanted_ > 0; }
  Time deadline() const { return state_ == State::kDelayed ? deadline_ : kNever; }

  void want() { ++wanted_; }
  void hurry() { state_ = State::kDue; }
  void on_burst_end(Time now) {
    if (wanted_ >= kEvery) state_ = State::kDue;
    if (wanted_ == 0 || state_ != State::kNone) return;
    state_ = State::kDelayed;
    deadline_ = now + kLongest;
  }
  // True: it has become due.
  bool on_timer(Time now) {
    if (now < deadline()) return false;
    hurry();
    return true;
  }
  // It has left.
  void on_sent() { *this = {}; }

 private:
  State state_ = State::kNone;
  std::uint32_t wanted_ = 0;
  Time deadline_ = 0;  // of kDelayed
};

}  // namespace taco::harp
