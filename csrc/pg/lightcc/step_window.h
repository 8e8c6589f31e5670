// The newest steps that were all sent alike: how long they take, and how far that is to be trusted,
// by how much they differ from each other. Knows no clock and no torch; all ranks tell it the same.
//
// One model's; guarded by its owner.
#pragma once

#include <cmath>
#include <cstddef>
#include <deque>
#include <vector>

namespace taco::pg::lightcc {

// The error of a sum, or difference, of two figures whose errors are independent. (std::hypot()
// needs glibc 2.35, and a wheel is for older ones too.)
inline double error_of_sum(double a, double b) { return std::sqrt(a * a + b * b); }

class StepWindow {
 public:
  // `times` are those of one step, in seconds after its start: when each bucket was ready, then
  // when each had been averaged. There are as many as in the step before, unless clear() has been
  // called since.
  void add(std::vector<double> times);
  void clear() { steps_.clear(); }

  struct Summary {
    std::vector<double> medians;             // of the times, one by one
    std::vector<double> lengths, exposures;  // by step: all, and what computation does not hide
    double exposed = 0;  // the median of that; medians of times differ by chance in the computation
    // The most by which the medians may be wrong, but hardly ever are: of a step's length, and of
    // what the computation does not hide of it.
    double seconds_off = 0, exposed_off = 0;
    bool otherwise = false;  // they are others than steps before them
  };
  // Steps before a change of the network, or of the computation, are forgotten first. There must
  // be one.
  Summary summary();

 private:
  bool forget_what_was_otherwise();

  std::deque<std::vector<double>> steps_;
};

}  // namespace taco::pg::lightcc
