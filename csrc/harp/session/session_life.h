// How a session ends: of its own will, which takes a goodbye, or all at once.
//
//   state          what it does
//   kActive        everything
//   kLeaving       its owner wants it to end: waits until all its content is acknowledged
//   kSaidGoodbye   waits until that is acknowledged too
//   kEnded         nothing, ever
//
// Each leads to the next, and every one to kEnded. Whether the peer has said goodbye is a question
// apart: it may do so, or have done so, in any of them; afterwards nothing is recorded for it.
#pragma once

#include <cstdint>

namespace taco::harp {

class SessionLife {
 public:
  enum class State : std::uint8_t { kActive, kLeaving, kSaidGoodbye, kEnded };

  State state() const { return state_; }
  bool ended() const { return state_ == State::kEnded; }
  bool leaving() const { return state_ == State::kLeaving || state_ == State::kSaidGoodbye; }
  bool owes_goodbye() const { return state_ == State::kLeaving; }
  bool peer_left() const { return peer_left_; }
  bool may_record() const { return !ended() && !peer_left_; }

  void leave() { go(State::kActive, State::kLeaving); }
  void say_goodbye() { go(State::kLeaving, State::kSaidGoodbye); }
  void end() { state_ = State::kEnded; }
  void on_peer_left() { peer_left_ = true; }

 private:
  void go(State from, State to) {
    if (state_ == from) state_ = to;
  }

  State state_ = State::kActive;
  bool peer_left_ = false;
};

}  // namespace taco::harp
