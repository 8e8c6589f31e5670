// Reducing a team to a power of two: of the first 2 * extra places each odd one hands its operand
// to the even one before it, sits the exchange out, and gets the result at the end.
#pragma once

#include <bit>

namespace taco::pg {

class Fold {
 public:
  Fold(int place, int size)
      : place_(place),
        active_(static_cast<int>(std::bit_floor(static_cast<unsigned>(size)))),
        extra_(size - active_) {}

  int active() const { return active_; }  // a power of two
  bool paired() const { return place_ < 2 * extra_; }
  bool sits_out() const { return paired() && place_ % 2 == 1; }
  int partner() const { return place_ ^ 1; }                             // when paired()
  int index() const { return paired() ? place_ / 2 : place_ - extra_; }  // among the active
  int place_at(int index) const { return index < extra_ ? 2 * index : index + extra_; }

 private:
  int place_, active_, extra_;
};

}  // namespace taco::pg
