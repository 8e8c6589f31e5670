#include "pg/lightcc/automatic.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include "base/names.h"
#include "pg/lightcc/rank_sum.h"

namespace taco::pg::lightcc {
namespace {

constexpr int kFirstSteps = 3;   // to measure before the first choice
constexpr int kAfterChange = 9;  // to measure after a change
constexpr int kMaxSteps = 12;    // from one agreement to the next: a change is followed in 30
// Steps after which the better guess decides, where what a change has brought is within chance.
constexpr int kEnoughSteps = 64;
constexpr std::int64_t kHolds = 4096;  // steps for which a measurement does
// The exposed share of a step from which on predictions are put to the test, and how wrong they may
// be.
constexpr double kExposed = 0.03, kUncertain = 0.1;
// The share by which steps may have become slower by a change that gives up less than before.
constexpr double kSlower = 0.02;
// The share by which steps must differ from those before, sent alike, for the network to be another
// one.
constexpr double kOtherNetwork = 0.1;
// Changes that it may make in so many steps where these vary by more than that.
constexpr int kChanges = 2, kThoughtOver = 1024;
constexpr double kVaries = 0.01;
constexpr double kMaxDoubt = 0.9;  // as a share of what is measured

StepModel with_costs(const StepModel& step, double factor) {
  StepModel other = step;
  for (ReadyBucket& bucket : other.buckets) {
    for (std::optional<Cost>& cost : bucket.costs) {
      if (cost) *cost = {cost->seconds * factor, cost->processor * factor, cost->wire * factor};
    }
  }
  return other;
}

}  // namespace

Automatic::Automatic(CostOf cost_of, const ChoiceRules& rules)
    : cost_of_(std::move(cost_of)), rules_(rules) {}

void Automatic::start_anew(std::vector<Bucket> buckets) {
  buckets_ = std::move(buckets);
  ways_.assign(buckets_.size(), Way::kExact);
  before_.reset();
  tried_.clear();
  changes_ = 0;
  asked_ = false;
  measure_again(kFirstSteps);
}

void Automatic::measure_again(int steps) {
  window_.clear();
  measured_.clear();
  unasked_ = since_change_ = 0;
  interval_ = steps;
  skip_ = 1;  // whose plans are made, and whose residuals are allocated
}

bool Automatic::step_done(const std::vector<Averaged>& buckets) {
  if (buckets.empty()) return false;
  std::vector<Bucket> seen;
  double over = buckets.front().end;
  for (const Averaged& bucket : buckets) {
    seen.push_back({bucket.index, bucket.bytes});
    over = std::max(over, bucket.end);
  }
  const std::optional<double> began = std::exchange(step_began_, over);
  const bool others = seen != buckets_;
  if (others) start_anew(std::move(seen));
  ++steps_;
  if (skip_ > 0) {
    --skip_;
    return others;
  }
  for (const Averaged& bucket : buckets) measured_.push_back(bucket.ready - *began);
  for (const Averaged& bucket : buckets) measured_.push_back(bucket.end - *began);
  ++unasked_;
  ++since_change_;
  return others;
}

std::optional<std::vector<double>> Automatic::question() {
  if (asked_ || unasked_ < interval_) return std::nullopt;
  asked_ = true;
  unasked_ = 0;
  return std::exchange(measured_, {});
}

StepModel Automatic::predicted(const std::vector<double>& medians) const {
  StepModel step;
  std::map<std::uint64_t, decltype(ReadyBucket::costs)> costs;  // of so many bytes
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    const std::uint64_t bytes = buckets_[i].bytes;
    const auto [known, is_new] = costs.try_emplace(bytes);
    for (std::size_t way = 0; is_new && way < kWays; ++way) {
      known->second[way] = cost_of_(bytes, static_cast<Way>(way));
    }
    step.compute = std::max(step.compute, medians[i]);
    step.buckets.push_back({.bytes = bytes, .ready = medians[i], .costs = known->second});
  }
  return step;
}

Automatic::Trial Automatic::trial_of(const StepWindow::Summary& summary, double compute) const {
  const double over =
      std::max(compute, *std::max_element(summary.medians.begin(), summary.medians.end()));
  return {.seconds = over,
          .exposed = summary.exposed,
          .seconds_off = summary.seconds_off,
          .exposed_off = summary.exposed_off,
          .each_seconds = summary.lengths,
          .each_exposed = summary.exposures,
          .step = steps_};
}

// Compares what the computation does not hide, where whole steps vary more; but what makes the
// computation itself longer shows in whole steps only.
Automatic::Gain Automatic::gain(const Trial& from, const Trial& to) {
  const Gain whole{from.seconds - to.seconds, error_of_sum(from.seconds_off, to.seconds_off)};
  const Gain shown{from.exposed - to.exposed, error_of_sum(from.exposed_off, to.exposed_off)};
  return std::abs(whole.seconds) > whole.off || whole.off <= shown.off ? whole : shown;
}

// Judges the change after `before`: a choice that gives up more must gain by it.
Automatic::Verdict Automatic::judged(const Before& before, const StepModel& step,
                                     const Trial& now) const {
  const bool gives_up_more = loss(step, before.ways) < loss(step, ways_);
  const double least = before.trial.seconds * (gives_up_more ? rules_.tolerance : -kSlower);
  const Gain found = gain(before.trial, now);
  const bool enough = since_change_ >= kEnoughSteps;
  if (!enough && std::abs(found.seconds - least) < found.off) return Verdict::kUnclear;
  return found.seconds < least ? Verdict::kNoGain : Verdict::kGain;
}

// One way for all buckets that nobody has measured yet.
std::optional<Ways> Automatic::worth_a_try(const StepModel& step, const Trial& now) const {
  // A gain that is within chance would not show.
  const double off = std::max(now.seconds_off, now.exposed_off);
  if (now.exposed < step.compute * kExposed + off) return std::nullopt;
  const double most = now.seconds * (1 + kUncertain) - off;
  std::optional<Ways> found;
  for (std::size_t way = 0; way < kWays; ++way) {
    Ways all = all_by(step, static_cast<Way>(way));
    const double expected = lightcc::seconds(step, all);
    if (tried_.contains(all) || expected > most) continue;
    if (!found || expected < lightcc::seconds(step, *found)) found = std::move(all);
  }
  return found;
}

// Takes up what a step took that was sent as it is now. `shows`: the window shows that steps are
// not as they were.
void Automatic::calibrate(const StepModel& predicted, const Trial& now, bool shows) {
  const auto known = tried_.find(ways_);
  const bool otherwise = known != tried_.end() && is_otherwise(known->second, now, shows);
  if (otherwise) {
    tried_.clear();
    changes_ = 0;
  }
  tried_[ways_] = now;
  calibration_.learn(predicted, ways_, {predicted.compute + now.exposed, now.exposed_off},
                     otherwise);
}

// Steps of the same buckets, sent alike: do they say that the network, or the computation, is
// another one?
bool Automatic::is_otherwise(const Trial& known, const Trial& now, bool shows) const {
  const Gain since = gain(widened(known), widened(now));
  if (std::abs(since.seconds) <= kOtherNetwork * known.seconds) return false;
  return shows || is_no_chance(now.each_seconds, known.each_seconds) ||
         is_no_chance(now.each_exposed, known.each_exposed);
}

// Steps that seem to vary little may have done so by chance, or not vary as they are sent now.
Automatic::Trial Automatic::widened(const Trial& one) const {
  Trial wide = one;
  for (const auto& [ways, trial] : tried_) {
    wide.seconds_off = std::max(wide.seconds_off, trial.seconds_off);
    wide.exposed_off = std::max(wide.exposed_off, trial.exposed_off);
  }
  return wide;
}

// The more often it has changed its mind, the surer it has to be.
Automatic::Trial Automatic::doubted(const Trial& now) const {
  Trial doubted = widened(now);
  doubted.seconds_off = std::ldexp(doubted.seconds_off, changes_);
  doubted.exposed_off = std::ldexp(doubted.exposed_off, changes_);
  return doubted;
}

// Takes another choice only where it would be right, too, if communication took as much less, or
// more, as what has been measured may be wrong.
Ways Automatic::by_prediction(const StepModel& step, const Trial& now) const {
  Ways other = reconsider(step, ways_, rules_);
  const double doubt =
      std::min(kMaxDoubt, std::max(now.seconds_off, now.exposed_off) / now.seconds);
  if (other == ways_ || doubt == 0) return other;
  const bool gives_up_less = loss(step, other) < loss(step, ways_);
  const StepModel careful = with_costs(step, gives_up_less ? 1 + doubt : 1 - doubt);
  const double least = gives_up_less ? -rules_.tolerance / 2 : rules_.hysteresis;
  return seconds(careful, other) <= seconds(careful, ways_) * (1 - least) ? other : ways_;
}

// Chooses by what has been measured or, where nothing has, by predictions; or returns what is used
// now.
Ways Automatic::better_than_now(const StepModel& step, const Trial& now) const {
  const auto is_fresh = [this](const Trial& trial) { return trial.step + kHolds >= steps_; };
  const Ways* best = &ways_;
  double most = now.seconds * rules_.hysteresis;
  for (const auto& [ways, trial] : tried_) {
    const Gain found = gain(now, trial);
    if (!is_fresh(trial) || found.seconds - found.off <= most) continue;
    best = &ways;
    most = found.seconds - found.off;
  }
  if (best != &ways_) return *best;
  Ways other = by_prediction(step, now);
  const auto known = tried_.find(other);
  if (known == tried_.end() || !is_fresh(known->second)) return other;
  const Gain found = gain(now, known->second);
  const bool gives_up_less = loss(step, other) < loss(step, ways_);
  const bool as_fast = found.seconds - found.off >= -now.seconds * rules_.tolerance / 2;
  return gives_up_less && as_fast ? other : ways_;
}

void Automatic::decide(Decision& decision, const Trial& now) {
  if (before_) {
    const Verdict verdict = judged(*before_, decision.step, now);
    if (verdict == Verdict::kUnclear) return;
    decision.taken_back = verdict == Verdict::kNoGain;
    if (decision.taken_back) decision.ways = before_->ways;
    before_.reset();
    if (decision.taken_back) return;
  }
  const Trial doubted = this->doubted(now);
  const int left = changes_left(doubted);
  if (left < 1) return;
  Ways better = better_than_now(decision.step, doubted);
  const bool is_new = !tried_.contains(better);
  if (better != ways_ && left >= (is_new ? kChanges : 1)) decision.ways = std::move(better);
  if (decision.ways != ways_ || left < kChanges) return;
  if (auto ways = worth_a_try(decision.step, doubted)) {
    decision.ways = *ways;
    decision.to_see = true;
  }
}

// Where steps vary, it may change its mind so many times more. Ways that have not been measured may
// have to be taken back: these are two changes.
int Automatic::changes_left(const Trial& doubted) {
  if (since_change_ >= kThoughtOver) changes_ = 0;
  const bool varies = doubted.seconds_off > kVaries * doubted.seconds;
  return varies ? kChanges - changes_ : kChanges;
}

std::optional<Decision> Automatic::answer(const std::vector<double>& largest) {
  const std::size_t each = 2 * buckets_.size();  // values of a step
  if (!std::exchange(asked_, false) || largest.empty() || largest.size() % each != 0) {
    return std::nullopt;
  }
  for (auto step = largest.begin(); step != largest.end(); step += each) {
    window_.add({step, step + each});
  }
  const StepWindow::Summary summary = window_.summary();
  const StepModel raw = predicted(summary.medians);
  const Trial now = trial_of(summary, raw.compute);
  calibrate(raw, now, summary.otherwise);
  Decision decision{.step = calibration_.corrected(raw),
                    .ways = ways_,
                    .measured = now.exposed,
                    .cable = calibration_.cable()};
  decide(decision, now);
  decision.changed = decision.ways != ways_;
  if (!decision.changed) {
    interval_ = std::min(2 * interval_, kMaxSteps);
    return decision;
  }
  if (!decision.taken_back) before_ = Before{ways_, now};
  ways_ = decision.ways;
  ++changes_;
  measure_again(kAfterChange);
  return decision;
}

std::map<std::size_t, Way> Automatic::ways() const {
  std::map<std::size_t, Way> found;
  for (std::size_t i = 0; i < ways_.size(); ++i) found.emplace(buckets_[i].index, ways_[i]);
  return found;
}

namespace {

std::string milliseconds(double seconds) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f", seconds * 1e3);
  return text.data();
}

// "3 buckets (25.0 MB) as float32"
std::string share_of(const Decision& decision, Way way, const std::string& name) {
  std::size_t count = 0;
  double bytes = 0;
  for (std::size_t i = 0; i < decision.ways.size(); ++i) {
    if (decision.ways[i] != way) continue;
    ++count;
    bytes += static_cast<double>(decision.step.buckets[i].bytes);
  }
  if (count == 0) return "";
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f", bytes / 1e6);
  return count_text(count, "bucket") + " (" + text.data() + " MB) as " + name;
}

// "0-2 float32, 3 TopK 1%"
std::string bucket_by_bucket(const Decision& decision,
                             const std::array<std::string, kWays>& names) {
  std::string text;
  for (std::size_t i = 0; i < decision.ways.size();) {
    std::size_t last = i;
    while (last + 1 < decision.ways.size() && decision.ways[last + 1] == decision.ways[i]) ++last;
    text += (text.empty() ? "" : ", ") + std::to_string(i);
    if (last > i) text += "-" + std::to_string(last);
    text += " " + names[static_cast<std::size_t>(decision.ways[i])];
    i = last + 1;
  }
  return text;
}

}  // namespace

std::string describe(const Decision& decision, const std::array<std::string, kWays>& names) {
  std::string shares, each;
  for (std::size_t i = 0; i < kWays; ++i) {
    const auto way = static_cast<Way>(i);
    const std::string share = share_of(decision, way, names[i]);
    if (!share.empty()) shares += (shares.empty() ? "" : ", ") + share;
    const Ways all = all_by(decision.step, way);
    if (way != Way::kExact && all == all_by(decision.step, Way::kExact)) continue;
    each += (each.empty() ? "" : ", ") + names[i] + " " +
            milliseconds(exposed(decision.step, all)) + " ms";
  }
  std::string text = decision.taken_back ? "steps were no faster, so back to "
                     : decision.to_see   ? "to see whether it is faster: "
                                         : "";
  text += shares + " (" + bucket_by_bucket(decision, names) + "): should expose " +
          milliseconds(exposed(decision.step, decision.ways)) + " ms beside " +
          milliseconds(decision.step.compute) + " ms of computation; all as " + each +
          "; measured so far " + milliseconds(decision.measured) + " ms";
  if (decision.cable > 1.1 || decision.cable < 0.9) {
    std::array<char, 32> factor{};
    std::snprintf(factor.data(), factor.size(), "%.2g", decision.cable);
    text += "; the network takes " + std::string(factor.data()) + " times as long as predicted";
  }
  return text;
}

}  // namespace taco::pg::lightcc
