#include "harp/session/path_mtu.h"

#include <algorithm>
#include <array>

namespace taco::harp {
namespace {

// UDP payloads of the MTUs that networks have: jumbo frames, clouds' variants of them, Ethernet,
// and Ethernet less what tunnels take; over IPv4 and over IPv6 where they differ by enough.
constexpr std::array<std::uint32_t, 12> kUsual = {8972, 8848, 4324, 4052, 1472, 1452,
                                                  1432, 1412, 1392, 1372, 1352, 1232};

}  // namespace

// The largest size worth probing that is less than `bytes`: the limit itself, a usual one, kBase.
// 0: none.
std::uint32_t PathMtu::candidate_below(std::size_t bytes) const {
  if (bytes > limit_) return limit_;
  for (const std::uint32_t size : kUsual) {
    // One that is closer to the limit would carry the same segments, multiples of kGranule.
    if (size < bytes && size + wire::kGranule <= limit_) return size;
  }
  return bytes > kBase ? kBase : 0;
}

void PathMtu::open(std::size_t limit, Time now) {
  *this = {};
  limit_ = std::max(static_cast<std::uint32_t>(limit), kBase);
  growth_at_ = now;
  on_traffic(now);
}

void PathMtu::on_proof(std::size_t bytes, Time now) {
  if (doubting_) return;
  confirmed_ = std::max(confirmed_, candidate_below(bytes + 1));
  if (searching_ && confirmed_ == limit_) finish(now);
}

// In doubt everything is asked that was relied on, down to kBase, whose answer tells a black hole
// from a path that is dead or slow.
void PathMtu::begin(bool doubt) {
  searching_ = true;
  doubting_ = doubt;
  answered_ = false;
  best_ = doubt ? 0 : confirmed_;
  round_ = silence_ = 0;
  next_round();
}

void PathMtu::next_round() {
  ++round_;
  round_end_ = kNever;
  next_ = candidate_below(max_wanted() + 1);
}

void PathMtu::doubt(Time now) {
  lost_runs_ = 0;
  futile_ = 0;
  growth_at_ = now;
  if (confirmed_ > kBase) {
    begin(true);
  } else {
    on_traffic(now);
  }
}

bool PathMtu::on_traffic(Time now) {
  if (searching_ || now < growth_at_) return false;
  growth_at_ = kNever;
  if (confirmed_ < limit_) begin(false);
  return searching_;
}

std::size_t PathMtu::next_probe() const { return searching_ && next_ > best_ ? next_ : 0; }

void PathMtu::on_probe_sent(Time now, Duration wait) {
  next_ = candidate_below(next_);
  round_end_ = now + std::max(wait, patience());
}

void PathMtu::on_probe_acked(std::size_t bytes, Time now) {
  if (!searching_) return on_proof(bytes, now);
  answered_ = true;
  silence_ = 0;
  best_ = std::max(best_, static_cast<std::uint32_t>(std::min(bytes, max_wanted())));
  if (!doubting_) confirmed_ = std::max(confirmed_, best_);
  if (best_ == max_wanted()) finish(now);
}

bool PathMtu::on_timer(Time now) {
  if (!searching_ || now < round_end_) return false;
  if (next_probe() != 0) {  // not all could be sent yet
    note_silence();
    round_end_ = now + patience();
    return false;
  }
  // A path that answers nothing at all is no black hole: the question stays open.
  if (doubting_ && !answered_) {
    note_silence();
    --round_;
  }
  if (round_ < kRounds) {
    next_round();
    return false;
  }
  finish(now);
  return true;
}

void PathMtu::finish(Time now) {
  if (!doubting_) {
    futile_ = static_cast<std::uint8_t>(std::min(futile_ + 1, 8));
  } else if (best_ < confirmed_) {
    confirmed_ = std::max(best_, kBase);
    futile_ = false_alarms_ = 0;
  } else {
    trusted_until_ = now + std::min(kFirstTrust << false_alarms_, kLastTrust);
    false_alarms_ = static_cast<std::uint8_t>(std::min(false_alarms_ + 1, 8));
  }
  const Duration growth = std::min(kFirstGrowth << futile_, kLastGrowth);
  growth_at_ = confirmed_ < limit_ ? now + growth : kNever;
  lost_runs_ = 0;
  searching_ = doubting_ = false;
  round_end_ = kNever;
}

void PathMtu::on_data_acked(std::size_t bytes, Time sent) {
  if (bytes <= kBase) return;
  if (sent >= good_sent_ || bytes > good_bytes_) {
    good_bytes_ = static_cast<std::uint32_t>(bytes);
    good_sent_ = sent;
  }
  if (bytes >= lost_bytes_) lost_runs_ = 0;
}

void PathMtu::on_data_lost(std::size_t bytes, Time sent, Time now) {
  if (bytes <= kBase || doubting_ || confirmed_ == kBase) return;
  // Something as large has got through since: an ordinary loss.
  if (good_sent_ >= sent && good_bytes_ >= bytes) return;
  const auto size = static_cast<std::uint32_t>(bytes);
  if (lost_runs_++ == 0) {
    first_lost_ = now;
    lost_bytes_ = size;
  }
  lost_bytes_ = std::min(lost_bytes_, size);
  const bool again = lost_runs_ > 1 && sent >= first_lost_;  // a retransmission, lost as well
  if ((again || lost_runs_ >= kSuspiciousRuns) && now >= trusted_until_) begin(true);
}

}  // namespace taco::harp
