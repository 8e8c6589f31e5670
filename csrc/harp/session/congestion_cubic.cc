#include <algorithm>
#include <cmath>

#include "harp/session/congestion.h"

namespace taco::harp {
namespace {

constexpr double kBeta = 0.7;
constexpr double kC = 0.4;  // packets per second cubed
// The growth in a round by which Reno would do as well with our kBeta as it does with its own.
constexpr double kRenoStep = 3 * (1 - kBeta) / (1 + kBeta);

void cubic_start(CongestionState& state) { state.window = kInitialWindow; }

void cubic_on_ack(CongestionState& state, const AckSample& sample) {
  if (!sample.limited || sample.packets == 0 || sample.largest < state.recovery_end) return;
  if (state.window < state.slow_start_threshold) {
    state.window = std::min(state.window + sample.packets, kLargestWindow);
    return;
  }
  if (state.cubic.epoch_start == 0) {
    state.cubic.epoch_start = sample.now;
    state.cubic.last_maximum = std::max(state.cubic.last_maximum, state.window);
    state.cubic.reno = state.window;
  }
  const double t =
      static_cast<double>(sample.now - state.cubic.epoch_start + sample.smoothed_rtt) / kSecond;
  const double k = std::cbrt(state.cubic.last_maximum * (1 - kBeta) / kC);
  const double target = kC * std::pow(t - k, 3) + state.cubic.last_maximum;
  const double rate = std::clamp((target - state.window) / state.window, 0.01, 0.5);
  // Where round trips are short, time is too slow a measure, and Reno is faster.
  const double reno_step = state.cubic.reno < state.window_before_loss ? kRenoStep : 1;
  state.cubic.reno += reno_step * sample.packets / state.window;
  state.window = std::max(state.window + rate * sample.packets, state.cubic.reno);
  state.window = std::min(state.window, kLargestWindow);
}

void cubic_on_loss(CongestionState& state, const AckSample& sample) {
  if (sample.largest < state.recovery_end) return;  // one reduction a round trip
  state.window_before_loss = static_cast<float>(state.window);
  state.threshold_before_loss = static_cast<float>(state.slow_start_threshold);
  state.cubic.last_maximum =
      state.window < state.cubic.last_maximum ? state.window * (1 + kBeta) / 2 : state.window;
  state.window = std::max(kMinWindow, state.window * kBeta);
  state.slow_start_threshold = state.window;
  state.cubic.epoch_start = 0;
  state.recovery_end = sample.next_number;
}

void cubic_on_silence(CongestionState& state) {
  state.slow_start_threshold = std::max(kMinWindow, state.window * kBeta);
  state.window = kMinWindow;
  state.cubic.epoch_start = 0;
}

void cubic_undo(CongestionState& state) {
  if (state.window_before_loss <= state.window) return;
  state.window = state.window_before_loss;
  state.slow_start_threshold = state.threshold_before_loss;
  state.recovery_end = 0;
}

}  // namespace

const CongestionOps kCubic{"cubic",          cubic_start, cubic_on_ack, cubic_on_loss,
                           cubic_on_silence, cubic_undo,  unpaced};

}  // namespace taco::harp
