// Chooses by itself, while a model trains, how each of its buckets is sent: from when buckets
// become ready and when they have been averaged, as all ranks have measured it, and from what each
// way should cost (choice.h), corrected by what it has cost so far (calibration.h).
//
// It begins with exact gradients. After a few steps the ranks agree on what they have measured: the
// caller lets the largest values of all ranks come together, and tells them. From then on they
// agree again at growing intervals; soon after a change, which is taken back if steps have not
// become faster. All ranks call the same functions with the same buckets in the same order, and so
// all come to the same choice. Knows no torch and no clock.
//
// One model's, on the thread that runs its steps.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "pg/lightcc/calibration.h"
#include "pg/lightcc/choice.h"

namespace taco::pg::lightcc {

// One bucket of a step: its number, and in seconds on one clock when it was ready here, and when it
// had been averaged.
struct Averaged {
  std::size_t index = 0;
  std::uint64_t bytes = 0;
  double ready = 0, end = 0;
};

struct Decision {
  StepModel step;  // as measured and predicted
  Ways ways;
  bool changed = false;
  bool taken_back = false;  // a change before, after which steps were no faster
  bool to_see = false;      // whether the prediction is right
  double measured = 0;      // seconds that the ways used so far exposed
  double cable = 1;         // Calibration::cable
};

class Automatic {
 public:
  // The predicted cost of averaging so many bytes by a way just now; nothing: it must not be used.
  using CostOf = std::function<std::optional<Cost>(std::uint64_t bytes, Way way)>;

  explicit Automatic(CostOf cost_of, const ChoiceRules& rules = {});

  // A step is over. True: its buckets are others than the step's before, and all are exact again.
  bool step_done(const std::vector<Averaged>& buckets);

  // To be called after each step: what all ranks should agree on now, or nothing.
  std::optional<std::vector<double>> question();
  // The largest of each value over all ranks, some steps later. Nothing is decided where the
  // buckets have changed in between.
  std::optional<Decision> answer(const std::vector<double>& largest);

  // By bucket number. Those that are not named are exact.
  std::map<std::size_t, Way> ways() const;

 private:
  struct Bucket {
    std::size_t index = 0;
    std::uint64_t bytes = 0;
    bool operator==(const Bucket&) const = default;
  };
  // The ways that were used before a change.
  struct Before {
    Ways ways;
    double seconds = 0;  // of a step
    int interval = 0;
  };
  struct Trial {
    double seconds = 0;  // of a step
    int answer = 0;      // number of the one that told it
  };

  void start_anew(std::vector<Bucket> buckets);
  void measure_again(int steps);
  std::vector<double> medians() const;
  StepModel predicted(const std::vector<double>& largest) const;
  void calibrate(const StepModel& predicted, double seconds);
  Ways better_than_now(const StepModel& step, double seconds) const;
  std::optional<Ways> worth_a_try(const StepModel& step, double seconds) const;
  bool was_no_gain(const Before& before, const StepModel& step, double seconds) const;

  const CostOf cost_of_;
  const ChoiceRules rules_;
  std::vector<Bucket> buckets_;
  Ways ways_;
  Calibration calibration_;
  std::optional<double> step_began_;        // when the last bucket of the step before had its end
  std::deque<std::vector<double>> window_;  // of the newest steps: when ready, then when over
  bool asked_ = false;
  int skip_ = 0;      // steps that measure nothing
  int measured_ = 0;  // steps since the last question
  int interval_ = 0;  // steps from one question to the next
  std::optional<Before> before_;
  int answers_ = 0;
  std::map<Ways, Trial> tried_;  // what is known of these buckets
};

// For the log: what was chosen for which bucket, and what each way would have exposed. `names` by
// Way.
std::string describe(const Decision& decision, const std::array<std::string, kWays>& names);

}  // namespace taco::pg::lightcc
