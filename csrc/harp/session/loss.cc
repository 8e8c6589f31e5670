#include "harp/session/loss.h"

#include <cstdlib>

namespace taco::harp {

void RoundTrip::on_sample(Duration rtt, Duration delay) {
  rtt = std::max<Duration>(rtt, 1);
  least_ = least_ == 0 ? rtt : std::min(least_, rtt);
  largest_delay_ = std::max(delay, largest_delay_ - largest_delay_ / 64);
  // A delay the peer claims never makes the path look shorter than it was ever seen to be.
  latest_ = rtt - delay >= least_ ? rtt - delay : rtt;
  if (smoothed_ == 0) {
    smoothed_ = latest_;
    variation_ = latest_ / 2;
    return;
  }
  variation_ += (std::abs(smoothed_ - latest_) - variation_) / 4;
  smoothed_ = std::max<Duration>(smoothed_ + (latest_ - smoothed_) / 8, 1);
}

Duration RoundTrip::probe_timeout(std::uint32_t backoff) const {
  const Duration base =
      has_sample() ? std::max(smoothed_ + 4 * variation_ + largest_delay_, kFloor) : kInitial;
  return std::min(base << std::min(backoff, 10u), std::max(kCeiling, base));
}

}  // namespace taco::harp
