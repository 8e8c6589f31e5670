#include "pg/lightcc/calibration.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace taco::pg::lightcc {
namespace {

// The share of a step below which a difference is noise.
constexpr double kNoise = 0.005;
// No factor is beyond these. An interface may be said to be thousands of times as fast as the
// network behind it, but hardly slower.
constexpr double kMin = 1.0 / 64, kMax = 1e4;
// A factor that many times as large makes hardly a difference: it does not show in the end.
constexpr double kFlat = 1.2;

std::size_t index_of(Way way) { return static_cast<std::size_t>(way); }

}  // namespace

Cost Calibration::corrected(const Cost& cost, Way way) const {
  const double own = own_[index_of(way)];
  const double rest = cost.seconds - std::max(cost.processor, cost.wire);
  const double wire = cable_ * cost.wire;
  return {.seconds = own * (std::max(cost.processor, wire) + rest),
          .processor = own * cost.processor,
          .wire = own * wire};
}

StepModel Calibration::corrected(const StepModel& predicted) const {
  StepModel step = predicted;
  for (ReadyBucket& bucket : step.buckets) {
    for (std::size_t way = 0; way < kWays; ++way) {
      std::optional<Cost>& cost = bucket.costs[way];
      if (cost) cost = corrected(*cost, static_cast<Way>(way));
    }
  }
  return step;
}

double Calibration::predicted_end(const StepModel& predicted, const Ways& ways) const {
  return seconds(corrected(predicted), ways);
}

// A difference that shows when a way has just come into use is the way's own. Later it is the
// network that changes, as long as it is the network that is waited for.
void Calibration::learn(const StepModel& predicted, const Ways& ways, const End& end,
                        bool otherwise) {
  const double expected = predicted_end(predicted, ways);
  const double difference = std::abs(end.seconds - expected);
  const bool near = difference <= kNoise * expected;
  for (const Way way : {Way::kExact, Way::kHalf, Way::kTopK}) {
    if (ways != all_by(predicted, way)) continue;
    const bool first = !std::exchange(measured_[index_of(way)], true);
    if (near || (!first && difference <= end.off)) return;
    const bool slower_network = way == Way::kExact && end.seconds > expected;
    const bool cable =
        slower_network || ((way == Way::kExact || !first) && waits_for_cable(predicted, way));
    if (cable && fit(cable_, predicted, ways, end.seconds)) return;
    fit(own_[index_of(way)], predicted, ways, end.seconds);
    return;
  }
  if (otherwise && !near) fit(cable_, predicted, ways, end.seconds);
}

// The factor with which the prediction is `end`: longer with a larger one. Where several are, as
// with something else that takes longer, the nearest to what it has been. False, and nothing has
// changed, if none is.
bool Calibration::fit(double& factor, const StepModel& predicted, const Ways& ways, double end) {
  const double before = factor;
  const auto factor_for = [&](double seconds) {
    double low = kMin, high = kMax;
    for (int i = 0; i < 48; ++i) {
      factor = std::sqrt(low * high);
      (predicted_end(predicted, ways) < seconds ? low : high) = factor;
    }
    return factor;
  };
  const double least = factor_for(end * (1 - kNoise)), most = factor_for(end * (1 + kNoise));
  const double exact = factor_for(end);
  const bool found = std::abs(predicted_end(predicted, ways) - end) <= kNoise * end;
  const bool flat = most > kFlat * least;
  factor = !found ? before : flat ? std::clamp(before, least, most) : exact;
  return found;
}

bool Calibration::waits_for_cable(const StepModel& predicted, Way way) const {
  double wire = 0, processor = 0;
  for (const ReadyBucket& bucket : predicted.buckets) {
    if (!bucket.allows(way)) continue;
    const Cost cost = corrected(bucket.cost(way), way);
    wire += cost.wire;
    processor += cost.processor;
  }
  return wire >= processor;
}

}  // namespace taco::pg::lightcc
