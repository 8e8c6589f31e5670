#include "harp/session/loss.h"

#include <cstdlib>

namespace taco::harp {

// The queue there is between nothing and all that the round trip has beyond its least.
void RoundTrip::split(Time now, std::uint32_t one_way_us, bool first) {
  const Duration most = std::max<Duration>(latest_ - min_, 0) / kMicrosecond;
  const auto now_ms = static_cast<std::uint32_t>(now / kMillisecond);
  const std::uint32_t drift = first ? 0 : (now_ms - split_ms_) / kDrift;
  if (first) {
    shortest_ = one_way_us;
    split_ms_ = now_ms;
  }
  shortest_ -= drift;
  split_ms_ += drift * kDrift;
  const auto beyond = static_cast<std::int32_t>(one_way_us - shortest_);
  queue_us_ = static_cast<std::uint32_t>(std::clamp<Duration>(beyond, 0, most));
  shortest_ = one_way_us - queue_us_;
}

void RoundTrip::on_sample(Time now, Duration rtt, Duration delay, std::uint32_t one_way_us,
                          bool alone) {
  const bool first = min_ == 0;  // by this way
  const Duration bare = std::max<Duration>(rtt - std::min(delay, kMaxDelay), 1);
  if (now >= epoch_end_) {
    if (epoch_alone_) min_ = epoch_least_;
    epoch_least_ = 0;
    epoch_alone_ = false;
    epoch_end_ = now + kEpoch;
  }
  min_ = min_ == 0 ? bare : std::min(min_, bare);
  epoch_least_ = epoch_least_ == 0 ? bare : std::min(epoch_least_, bare);
  epoch_alone_ |= alone;
  largest_delay_ = std::max(delay, largest_delay_ - largest_delay_ / 64);
  // Whatever delay the peer claims, this was no shorter than the path was ever seen to be.
  latest_ = std::max(rtt - delay, min_);
  split(now, one_way_us, first);
  if (smoothed_ == 0) {
    smoothed_ = latest_;
    variation_ = latest_ / 2;
    return;
  }
  variation_ += (std::abs(smoothed_ - latest_) - variation_) / 4;
  smoothed_ = std::max<Duration>(smoothed_ + (latest_ - smoothed_) / 8, 1);
}

Duration RoundTrip::probe_timeout(std::uint32_t backoff) const {
  const Duration base = has_sample() ? std::max(answer_time() + largest_delay_, kFloor) : kInitial;
  return std::min(base << std::min(backoff, 10u), std::max(kCeiling, base));
}

}  // namespace taco::harp
