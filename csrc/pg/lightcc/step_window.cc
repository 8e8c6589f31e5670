#include "pg/lightcc/step_window.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "pg/lightcc/rank_sum.h"

namespace taco::pg::lightcc {
namespace {

constexpr std::size_t kMaxWindowSteps = 64;
constexpr std::size_t kNewest = 6, kMaxNewest = 24;  // that may show that something has changed
constexpr double kAlike = 1e-3;  // what differs by less, as a share, is the same

double median_of(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// About the standard deviation of values around `middle`, whatever a quarter of them is.
double spread_of(std::vector<double> values, double middle) {
  constexpr double kOfNormal = 1 / 1.15;
  for (double& value : values) value = std::abs(value - middle);
  const auto most = values.begin() + static_cast<std::ptrdiff_t>(values.size() * 3 / 4);
  std::nth_element(values.begin(), most, values.end());
  return kOfNormal * *most;
}

// The error of the median of so many values, as a share of their spread.
double error_of_median(std::size_t count) { return 1.2533 / std::sqrt(static_cast<double>(count)); }

// The spread of few values is hardly known itself.
double margin_of(const std::vector<double>& values) {
  const auto count = static_cast<double>(values.size());
  return 3 * (1 + 4 / count) * error_of_median(values.size()) *
         spread_of(values, median_of(values));
}

// Do they differ by more than chance?
bool differ(const std::vector<double>& newest, const std::vector<double>& before) {
  const double old = median_of(before), now = median_of(newest);
  return std::abs(now - old) > kAlike * old && is_no_chance(newest, before);
}

double length_of(const std::vector<double>& times) {
  return *std::max_element(times.begin(), times.end());
}

double exposed_of(const std::vector<double>& times) {
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  return length_of(times) - *std::max_element(times.begin(), middle);
}

template <class Of>
std::vector<double> each(const std::deque<std::vector<double>>& steps, Of of) {
  std::vector<double> values;
  values.reserve(steps.size());
  for (const std::vector<double>& times : steps) values.push_back(of(times));
  return values;
}

}  // namespace

void StepWindow::add(std::vector<double> times) {
  steps_.push_back(std::move(times));
  if (steps_.size() > kMaxWindowSteps) steps_.pop_front();
}

// A large difference shows in few steps, and among few there is none from before it.
bool StepWindow::forget_what_was_otherwise() {
  for (std::size_t count = kNewest; count <= kMaxNewest; count += kNewest) {
    if (steps_.size() < count + kNewest) return false;
    const auto newest_from = static_cast<std::ptrdiff_t>(steps_.size() - count);
    for (auto* of : {length_of, exposed_of}) {
      const std::vector<double> all = each(steps_, of);
      const auto middle = all.begin() + newest_from;
      if (!differ({middle, all.end()}, {all.begin(), middle})) continue;
      steps_.erase(steps_.begin(), steps_.begin() + newest_from);
      return true;
    }
  }
  return false;
}

StepWindow::Summary StepWindow::summary() {
  const bool otherwise = forget_what_was_otherwise();
  Summary found{.medians = {},
                .lengths = each(steps_, length_of),
                .exposures = each(steps_, exposed_of),
                .otherwise = otherwise};
  found.seconds_off = margin_of(found.lengths);
  found.exposed = median_of(found.exposures);
  found.exposed_off = margin_of(found.exposures);
  for (std::size_t i = 0; i < steps_.front().size(); ++i) {
    found.medians.push_back(
        median_of(each(steps_, [i](const std::vector<double>& times) { return times[i]; })));
  }
  return found;
}

}  // namespace taco::pg::lightcc
