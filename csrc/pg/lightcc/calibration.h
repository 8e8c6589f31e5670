// Compares the times of real steps with predicted ones: a network slower than its interfaces say,
// or a way of sending that costs more here than its prediction. Predictions are corrected by it.
// Knows no clock and no torch; all ranks tell it the same.
//
// One model's; guarded by its owner.
#pragma once

#include <array>

#include "pg/lightcc/choice.h"

namespace taco::pg::lightcc {

class Calibration {
 public:
  // The time at which a step has ended, in seconds, and by how much that may be wrong.
  struct End {
    double seconds = 0, off = 0;
  };
  // A step, predicted as in `predicted`, whose buckets travelled by `ways`, ended at `end`.
  // `otherwise`: and at another time with the same ways so far. Of steps in which several ways were
  // mixed only that is of use: which of them took longer than predicted, cannot be told.
  void learn(const StepModel& predicted, const Ways& ways, const End& end, bool otherwise);

  StepModel corrected(const StepModel& predicted) const;
  // How many times as long as predicted the cable is at work for the same bytes.
  double cable() const { return cable_; }

 private:
  Cost corrected(const Cost& cost, Way way) const;
  double predicted_end(const StepModel& predicted, const Ways& ways) const;
  bool fit(double& factor, const StepModel& predicted, const Ways& ways, double end);
  bool waits_for_cable(const StepModel& predicted, Way way) const;

  double cable_ = 1;
  std::array<double, kWays> own_ = {1, 1, 1};  // of each way, besides the cable's
  std::array<bool, kWays> measured_{};         // all buckets by that way
};

}  // namespace taco::pg::lightcc
