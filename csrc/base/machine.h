// A small state machine: one of a few states, and which may follow which. The states are an enum;
// beside it stands the table, as a comment to read and as leads_to(from, to), which says the same.
// The first enumerator is the state that a machine begins in.
#pragma once

#include "base/assert.h"

namespace taco {

template <class State>
class Machine {
 public:
  State state() const { return state_; }
  bool is(State state) const { return state_ == state; }

  void go(State next) {
    TACO_ASSERT(leads_to(state_, next), "state %d does not lead to %d", static_cast<int>(state_),
                static_cast<int>(next));
    state_ = next;
  }

 private:
  State state_{};
};

}  // namespace taco
