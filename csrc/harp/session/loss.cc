#include "harp/session/loss.h"

#include <cstdlib>

namespace taco::harp {

void RoundTrip::on_sample(Time now, Duration rtt, Duration delay, bool alone) {
  rtt = std::max<Duration>(rtt, 1);
  if (now >= epoch_end_) {
    if (epoch_alone_) least_ = epoch_least_;
    epoch_least_ = 0;
    epoch_alone_ = false;
    epoch_end_ = now + kEpoch;
  }
  least_ = least_ == 0 ? rtt : std::min(least_, rtt);
  epoch_least_ = epoch_least_ == 0 ? rtt : std::min(epoch_least_, rtt);
  epoch_alone_ |= alone;
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
