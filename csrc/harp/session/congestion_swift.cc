#include <algorithm>
#include <cmath>

#include "harp/session/congestion.h"

namespace taco::harp {
namespace {

// Queueing delay to aim at. Large beside a switch's, because the "queue" here is mostly processes
// waiting for a core: a smaller one would let the wire run dry whenever the sender is not running.
constexpr Duration kTargetDelay = 4 * kMillisecond;
// On top of it for small windows. Flows that share a cable see one delay: where all had one target,
// whoever began first would keep what it had; so the larger gives way to the smaller.
constexpr double kForSmall = 80 * kMillisecond, kMostForSmall = 12 * kMillisecond;
constexpr double kMostDecrease = 0.5;
constexpr double kGain = 0.8;
constexpr double kHeavyLoss = 0.08;  // of a round

Duration target_delay(double window) {
  return kTargetDelay +
         static_cast<Duration>(std::min(kMostForSmall, kForSmall / std::sqrt(window)));
}

// What a window may grow by in a round near the target, where the wire is busy anyway.
double step(double window) { return std::min(window / 8, 16 + window / 32); }

void start(CongestionState& state) { state.window = kInitialWindow; }

void decrease(CongestionState& state, double factor) {
  state.window_before_loss = std::max(state.window_before_loss, state.window);
  state.window = std::max(kLeastWindow, state.window * factor);
}

void end_round(CongestionState& state, const AckSample& sample) {
  const Duration delay =
      state.round_least_rtt > 0 ? state.round_least_rtt - sample.least_rtt : Duration{0};
  const double all = state.round_acked + state.round_lost;
  const double loss = all > 0 ? state.round_lost / all : 0;
  const Duration target = target_delay(state.window);
  if (delay > target) {
    const double excess = static_cast<double>(delay - target) / static_cast<double>(delay);
    decrease(state, std::max(kMostDecrease, 1 - kGain * excess));
  } else if (loss > kHeavyLoss && all >= 16) {
    decrease(state, 0.7);
  } else if (state.round_lost > 0 && delay > target / 2) {
    decrease(state, 0.85);
  } else if (state.round_limited) {
    // Far below the target: double, as in slow start.
    state.window += delay < target / 2 ? state.round_acked : step(state.window);
    state.window = std::min(state.window, kLargestWindow);
  }
  if (state.round_lost == 0) state.window_before_loss = 0;
  state.round_end = sample.next_number;
  state.round_least_rtt = 0;
  state.round_acked = state.round_lost = 0;
  state.round_limited = false;
}

void on_ack(CongestionState& state, const AckSample& sample) {
  state.round_acked += sample.packets;
  state.round_limited |= sample.limited;
  // The least of a round: one delayed process inflates single samples, a queue inflates all.
  if (sample.rtt > 0 && (state.round_least_rtt == 0 || sample.rtt < state.round_least_rtt)) {
    state.round_least_rtt = sample.rtt;
  }
  if (sample.largest >= state.round_end) end_round(state, sample);
}

void on_loss(CongestionState& state, const AckSample& sample) { state.round_lost += sample.lost; }

void on_silence(CongestionState& state) { decrease(state, 0.5); }

void undo(CongestionState& state) {
  state.window = std::max(state.window, state.window_before_loss);
  state.round_lost = 0;
}

}  // namespace

const CongestionOps kSwift{"swift", start, on_ack, on_loss, on_silence, undo};

const CongestionOps* congestion_named(std::string_view name) {
  for (const CongestionOps* ops : {&kSwift, &kCubic}) {
    if (name == ops->name) return ops;
  }
  return nullptr;
}

}  // namespace taco::harp
