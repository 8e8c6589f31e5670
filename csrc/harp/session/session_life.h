// How a session ends: of its own will, which takes a goodbye, or all at once.
//
//   state          what it does                                           leads to
//   kActive        everything                                             kLeaving, kEnded
//   kLeaving       its owner wants it to end: waits until all its
//                  content is acknowledged                                kSaidGoodbye, kEnded
//   kSaidGoodbye   waits until that is acknowledged too                   kEnded
//   kEnded         nothing, ever
//
// Whether the peer has said goodbye is a question apart: it may have done so in every state, and
// once. Afterwards nothing is recorded for it.
#pragma once

#include <cstdint>

#include "base/machine.h"

namespace taco::harp {

class SessionLife {
 public:
  enum class State : std::uint8_t { kActive, kLeaving, kSaidGoodbye, kEnded };
  friend constexpr bool leads_to(State from, State to) {
    return to == State::kEnded ? from != to : static_cast<int>(to) == static_cast<int>(from) + 1;
  }

  State state() const { return state_.state(); }
  bool ended() const { return state_.is(State::kEnded); }
  bool leaving() const { return owes_goodbye() || said_goodbye(); }
  bool owes_goodbye() const { return state_.is(State::kLeaving); }
  bool said_goodbye() const { return state_.is(State::kSaidGoodbye); }
  bool peer_left() const { return peer_left_; }
  bool may_record() const { return !ended() && !peer_left_; }

  void leave() { state_.go(State::kLeaving); }
  void say_goodbye() { state_.go(State::kSaidGoodbye); }
  void end() { state_.go(State::kEnded); }
  void on_peer_left() {
    TACO_ASSERT(!peer_left_ && !ended());
    peer_left_ = true;
  }

 private:
  Machine<State> state_;
  bool peer_left_ = false;
};

}  // namespace taco::harp
