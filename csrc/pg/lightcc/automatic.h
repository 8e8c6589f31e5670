// Chooses by itself, while a model trains, how each of its buckets is sent: from when buckets
// become ready and when they have been averaged, as all ranks have measured it, and from what each
// way should cost (choice.h), corrected by what it has cost so far (calibration.h).
//
// It begins with exact gradients. After a few steps the ranks agree on what they have measured: the
// caller lets the largest values of all ranks come together, step by step, and tells them: a bucket
// is ready when it is on the last rank. From then on they agree again every few steps. A change is
// taken back if steps have not become faster. How long steps take varies, and no change is made for
// what may be chance (step_window.h). All ranks call the same functions with the same buckets in
// the same order, and so all come to the same choice. Knows no torch and no clock.
//
// One model's, on the thread that runs its steps.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "pg/lightcc/calibration.h"
#include "pg/lightcc/choice.h"
#include "pg/lightcc/step_window.h"

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
  // The time that steps took which were sent in one way.
  struct Trial {
    double seconds = 0, exposed = 0;                 // of a step
    double seconds_off = 0, exposed_off = 0;         // by how much these may be wrong
    std::vector<double> each_seconds, each_exposed;  // of the newest steps
    std::int64_t step = 0;                           // the newest
  };
  // The ways that were used before a change.
  struct Before {
    Ways ways;
    Trial trial;
  };
  // Seconds by which one is faster than another, and by how much that may be wrong.
  struct Gain {
    double seconds = 0, off = 0;
  };
  enum class Verdict : std::uint8_t { kGain, kNoGain, kUnclear };

  void start_anew(std::vector<Bucket> buckets);
  void measure_again(int steps);
  StepModel predicted(const std::vector<double>& medians) const;
  Trial trial_of(const StepWindow::Summary& summary, double compute) const;
  Trial widened(const Trial& one) const;
  Trial doubted(const Trial& now) const;
  void calibrate(const StepModel& predicted, const Trial& now, bool shows);
  void decide(Decision& decision, const Trial& now);
  Ways better_than_now(const StepModel& step, const Trial& now) const;
  Ways by_prediction(const StepModel& step, const Trial& now) const;
  std::optional<Ways> worth_a_try(const StepModel& step, const Trial& now) const;
  bool is_otherwise(const Trial& known, const Trial& now, bool shows) const;
  int changes_left(const Trial& doubted);
  Verdict judged(const Before& before, const StepModel& step, const Trial& now) const;
  static Gain gain(const Trial& from, const Trial& to);

  const CostOf cost_of_;
  const ChoiceRules rules_;
  std::vector<Bucket> buckets_;
  Ways ways_;
  Calibration calibration_;
  std::optional<double> step_began_;  // when the last bucket of the step before had its end
  StepWindow window_;
  std::vector<double> measured_;  // of the steps since the last question, one after the other
  bool asked_ = false;
  int skip_ = 0;                  // steps that measure nothing
  int unasked_ = 0;               // steps measured since the last question
  int since_change_ = 0;          // steps measured since then
  int interval_ = 0;              // steps from one question to the next
  int changes_ = 0;               // of mind, of those allowed until kThoughtOver steps after one
  std::int64_t steps_ = 0;        // all of them
  std::optional<Before> before_;  // until it is clear whether the change was good
  std::map<Ways, Trial> tried_;   // what is known of these buckets
};

// For the log: what was chosen for which bucket, and what each way would have exposed. `names` by
// Way.
std::string describe(const Decision& decision, const std::array<std::string, kWays>& names);

}  // namespace taco::pg::lightcc
