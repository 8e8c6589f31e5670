#include "pg/lightcc/automatic.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

namespace taco::pg::lightcc {
namespace {

constexpr int kFirstSteps = 3;      // to measure before the first choice, and after a change
constexpr int kMostSteps = 1024;    // from one agreement to the next
constexpr std::size_t kWindow = 9;  // steps of which medians are taken
constexpr int kMostAnswers = 8;     // for which a measurement holds
// The exposed share of a step from which on predictions are put to the test, and how wrong they may
// be.
constexpr double kExposed = 0.03, kUncertain = 0.1;
// The share by which steps may have become slower by a change that gives up less than before.
constexpr double kSlower = 0.02;
// The share by which steps must differ from those before, sent alike, for the network to be another
// one.
constexpr double kOtherNetwork = 0.1;

double median_of(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

Automatic::Automatic(CostOf cost_of, const ChoiceRules& rules)
    : cost_of_(std::move(cost_of)), rules_(rules) {}

void Automatic::start_anew(std::vector<Bucket> buckets) {
  buckets_ = std::move(buckets);
  ways_.assign(buckets_.size(), Way::kExact);
  before_.reset();
  tried_.clear();
  asked_ = false;
  measure_again(kFirstSteps);
}

void Automatic::measure_again(int steps) {
  window_.clear();
  measured_ = 0;
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
  if (skip_ > 0) {
    --skip_;
    return others;
  }
  std::vector<double> times(2 * buckets.size());
  for (std::size_t i = 0; i < buckets.size(); ++i) {
    times[i] = buckets[i].ready - *began;
    times[buckets.size() + i] = buckets[i].end - *began;
  }
  window_.push_back(std::move(times));
  if (window_.size() > kWindow) window_.pop_front();
  ++measured_;
  return others;
}

std::vector<double> Automatic::medians() const {
  std::vector<double> found, column;
  for (std::size_t i = 0; i < window_.front().size(); ++i) {
    column.clear();
    for (const std::vector<double>& times : window_) column.push_back(times[i]);
    found.push_back(median_of(column));
  }
  return found;
}

std::optional<std::vector<double>> Automatic::question() {
  if (asked_ || measured_ < interval_ || window_.empty()) return std::nullopt;
  asked_ = true;
  measured_ = 0;
  return medians();
}

StepModel Automatic::predicted(const std::vector<double>& largest) const {
  StepModel step;
  std::map<std::uint64_t, decltype(ReadyBucket::costs)> costs;  // of so many bytes
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    const std::uint64_t bytes = buckets_[i].bytes;
    const auto [known, is_new] = costs.try_emplace(bytes);
    for (std::size_t way = 0; is_new && way < kWays; ++way) {
      known->second[way] = cost_of_(bytes, static_cast<Way>(way));
    }
    step.compute = std::max(step.compute, largest[i]);
    step.buckets.push_back({.bytes = bytes, .ready = largest[i], .costs = known->second});
  }
  return step;
}

// Judges the change after `before`: a choice that gives up more must gain by it.
bool Automatic::was_no_gain(const Before& before, const StepModel& step, double seconds) const {
  const bool gives_up_more = loss(step, before.ways) < loss(step, ways_);
  return seconds > before.seconds * (gives_up_more ? 1 - rules_.tolerance : 1 + kSlower);
}

// One way for all buckets that nobody has measured yet.
std::optional<Ways> Automatic::worth_a_try(const StepModel& step, double seconds) const {
  if (seconds < step.compute * (1 + kExposed)) return std::nullopt;
  std::optional<Ways> found;
  for (std::size_t way = 0; way < kWays; ++way) {
    Ways all = all_by(step, static_cast<Way>(way));
    const double expected = lightcc::seconds(step, all);
    if (tried_.contains(all) || expected > seconds * (1 + kUncertain)) continue;
    if (!found || expected < lightcc::seconds(step, *found)) found = std::move(all);
  }
  return found;
}

// Takes up that a step of `seconds` was sent as it is now.
void Automatic::calibrate(const StepModel& predicted, double seconds) {
  const auto known = tried_.find(ways_);
  const bool otherwise = known != tried_.end() && std::abs(seconds - known->second.seconds) >
                                                      kOtherNetwork * known->second.seconds;
  if (otherwise) tried_.clear();
  tried_[ways_] = {.seconds = seconds, .answer = answers_};
  calibration_.learn(predicted, ways_, seconds, otherwise);
}

// Chooses by what has been measured or, where nothing has, by predictions; or returns what is used
// now.
Ways Automatic::better_than_now(const StepModel& step, double seconds) const {
  const auto is_fresh = [this](const Trial& trial) {
    return trial.answer + kMostAnswers >= answers_;
  };
  const Ways* best = &ways_;
  double least = seconds * (1 - rules_.hysteresis);
  for (const auto& [ways, trial] : tried_) {
    if (!is_fresh(trial) || trial.seconds >= least) continue;
    best = &ways;
    least = trial.seconds;
  }
  if (best != &ways_) return *best;
  Ways other = reconsider(step, ways_, rules_);
  const auto known = tried_.find(other);
  if (known == tried_.end() || !is_fresh(known->second)) return other;
  const bool gives_up_less = loss(step, other) < loss(step, ways_);
  const bool as_fast = known->second.seconds <= seconds * (1 + rules_.tolerance / 2);
  return gives_up_less && as_fast ? other : ways_;
}

std::optional<Decision> Automatic::answer(const std::vector<double>& largest) {
  if (!std::exchange(asked_, false) || largest.size() != 2 * buckets_.size()) return std::nullopt;
  const auto middle = largest.begin() + static_cast<std::ptrdiff_t>(buckets_.size());
  const StepModel raw = predicted(largest);
  const double over = std::max(raw.compute, *std::max_element(middle, largest.end()));
  ++answers_;
  calibrate(raw, over);
  Decision decision{.step = calibration_.corrected(raw),
                    .ways = ways_,
                    .measured = over - raw.compute,
                    .cable = calibration_.cable()};
  const std::optional<Before> before = std::exchange(before_, std::nullopt);
  decision.taken_back = before && was_no_gain(*before, decision.step, over);
  if (decision.taken_back) {
    decision.ways = before->ways;
  } else {
    decision.ways = better_than_now(decision.step, over);
    if (decision.ways == ways_) {
      if (auto ways = worth_a_try(decision.step, over)) {
        decision.ways = *ways;
        decision.to_see = true;
      }
    }
  }
  decision.changed = decision.ways != ways_;
  if (!decision.changed) {
    interval_ = std::min(2 * interval_, kMostSteps);
    return decision;
  }
  const int interval = std::exchange(interval_, kFirstSteps);
  if (!decision.taken_back) before_ = Before{ways_, over, interval};
  ways_ = decision.ways;
  measure_again(decision.taken_back ? std::min(2 * before->interval, kMostSteps) : kFirstSteps);
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
  return std::to_string(count) + (count == 1 ? " bucket (" : " buckets (") + text.data() +
         " MB) as " + name;
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
