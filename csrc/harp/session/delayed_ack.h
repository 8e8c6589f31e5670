// When one path acknowledges what has come by it: after so many packets, after a short while, or at
// once. An acknowledgement rides on any packet of frames that leaves before it is due.
//
//   state     what has come                     acknowledges                  leads to
//   kNone     nothing that asks for it          when something leaves anyway  kDelayed, kDue
//   kDelayed  a few packets that ask for it     at deadline()                 kDue, kNone
//             the end of a message              with the next turn            kDue, kNone
//   kDue      many, or one that is waited for   with the next packet          kNone
//
// Packets are counted as they come and judged once per burst, so in the midst of one there may be
// wants() in kNone.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/clock.h"
#include "base/machine.h"
#include "harp/session/wire.h"

namespace taco::harp {

class DelayedAck {
 public:
  enum class State : std::uint8_t { kNone, kDelayed, kDue };
  friend constexpr bool leads_to(State from, State to) {
    return from != to && (from != State::kDue || to == State::kNone);
  }
  static constexpr std::uint32_t kEvery = 48;  // packets
  static constexpr Duration kLongest = kMillisecond;
  static constexpr Duration kNextTurn = 1;
  static constexpr std::uint8_t kMaxHoles = wire::kMaxAckRanges / 2;

  State state() const { return state_.state(); }
  bool due() const { return state_.is(State::kDue); }
  // Something has come that asks for an acknowledgement.
  bool wanted() const { return wanted_ > 0; }
  Time deadline() const { return state_.is(State::kDelayed) ? deadline_ : kNever; }

  void want(std::uint32_t packets = 1) { wanted_ += packets; }
  // A message has ended, for which its sender waits. Its receiver is about to ask for another, most
  // likely: what asks for that, at the latest on the next turn, takes this along.
  void hurry_next_turn() { ended_ = true; }
  void hurry() {
    if (!due()) state_.go(State::kDue);
  }
  // Something is missing: its sender is told at once.
  void on_hole() {
    if (holes_ < kMaxHoles) ++holes_;
    hurry();
  }
  // With more of them, there would be no room to tell of all that has come.
  bool is_pressing() const { return holes_ == kMaxHoles; }
  void on_burst_end(Time now) {
    if (wanted_ >= kEvery + (ended_ ? kEvery : 0)) hurry();
    if (wanted_ == 0 || due()) return;
    if (state_.is(State::kNone)) {
      state_.go(State::kDelayed);
      deadline_ = now + kLongest;
    }
    if (ended_) deadline_ = std::min(deadline_, now + kNextTurn);
  }
  // True: it has become due.
  bool on_timer(Time now) {
    if (now < deadline()) return false;
    hurry();
    return true;
  }
  // The acknowledgement has left.
  void on_sent() {
    wanted_ = 0;
    holes_ = 0;
    ended_ = false;
    if (!state_.is(State::kNone)) state_.go(State::kNone);
  }

 private:
  Machine<State> state_;
  bool ended_ = false;
  std::uint8_t holes_ = 0;  // since it left last
  std::uint32_t wanted_ = 0;
  Time deadline_ = 0;  // of kDelayed
};

}  // namespace taco::harp
