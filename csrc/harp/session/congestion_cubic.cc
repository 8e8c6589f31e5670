#include <algorithm>
#include <cmath>

#include "harp/session/congestion.h"

namespace taco::harp {
namespace {

constexpr double kBeta = 0.7;
constexpr double kC = 0.4;  // packets per second cubed

void start(CongestionState& state) { state.window = kInitialWindow; }

void on_ack(CongestionState& state, const AckSample& sample) {
  if (!sample.limited || sample.packets == 0 || sample.largest < state.recovery_end) return;
  if (state.window < state.slow_start_threshold) {
    state.window = std::min(state.window + sample.packets, kLargestWindow);
    return;
  }
  if (state.epoch_start == 0) {
    state.epoch_start = sample.now;
    state.last_maximum = std::max(state.last_maximum, state.window);
  }
  const double t =
      static_cast<double>(sample.now - state.epoch_start + sample.smoothed_rtt) / kSecond;
  const double k = std::cbrt(state.last_maximum * (1 - kBeta) / kC);
  const double target = kC * std::pow(t - k, 3) + state.last_maximum;
  const double rate = std::clamp((target - state.window) / state.window, 0.01, 0.5);
  state.window = std::min(state.window + rate * sample.packets, kLargestWindow);
}

void on_loss(CongestionState& state, const AckSample& sample) {
  if (sample.largest < state.recovery_end) return;  // one reduction a round trip
  state.window_before_loss = state.window;
  state.threshold_before_loss = state.slow_start_threshold;
  state.last_maximum =
      state.window < state.last_maximum ? state.window * (1 + kBeta) / 2 : state.window;
  state.window = std::max(kLeastWindow, state.window * kBeta);
  state.slow_start_threshold = state.window;
  state.epoch_start = 0;
  state.recovery_end = sample.next_number;
}

void on_silence(CongestionState& state) {
  state.slow_start_threshold = std::max(kLeastWindow, state.window * kBeta);
  state.window = kLeastWindow;
  state.epoch_start = 0;
}

void undo(CongestionState& state) {
  if (state.window_before_loss <= state.window) return;
  state.window = state.window_before_loss;
  state.slow_start_threshold = state.threshold_before_loss;
  state.recovery_end = 0;
}

}  // namespace

const CongestionOps kCubic{"cubic", start, on_ack, on_loss, on_silence, undo};

}  // namespace taco::harp
