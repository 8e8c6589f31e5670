#include "harp/session/path_mtu.h"

#include <algorithm>

namespace taco::harp {
namespace {

// UDP payloads of the MTUs that networks have: jumbo frames, clouds' variants of them, Ethernet,
// and Ethernet less what tunnels take; over IPv4 and over IPv6 where they differ by enough.
constexpr std::array<std::uint32_t, 12> kUsual = {8972, 8848, 4324, 4052, 1472, 1452,
                                                  1432, 1412, 1392, 1372, 1352, 1232};

}  // namespace

void PathMtu::open(std::size_t limit, Time now) {
  limit = std::max(limit, kBase);
  count_ = 0;
  candidates_[count_++] = static_cast<std::uint32_t>(limit);
  // Closer ones would carry the same segments, which are multiples of kGranule.
  for (const std::uint32_t size : kUsual) {
    if (size + wire::kGranule <= candidates_[count_ - 1]) candidates_[count_++] = size;
  }
  if (candidates_[count_ - 1] != kBase) candidates_[count_++] = kBase;
  confirmed_ = kBase;
  searching_ = doubting_ = false;
  round_end_ = kNever;
  growth_ = kFirstGrowth;
  growth_at_ = now;
  lost_runs_ = 0;
  good_bytes_ = 0;
  on_traffic(now);
}

void PathMtu::on_proof(std::size_t bytes, Time now) {
  if (doubting_) return;
  for (std::uint32_t i = count_; i-- > 0 && candidates_[i] <= bytes;) {
    confirmed_ = std::max<std::size_t>(confirmed_, candidates_[i]);
  }
  if (searching_ && confirmed_ == candidates_[0]) finish(now);
}

// In doubt everything is asked that was relied on, and kBase, whose answer tells a black hole from
// a path that is dead or slow.
std::size_t PathMtu::most_wanted() const { return doubting_ ? confirmed_ : candidates_[0]; }

void PathMtu::begin(bool doubt) {
  searching_ = true;
  doubting_ = doubt;
  answered_ = false;
  best_ = doubt ? 0 : confirmed_;
  round_ = 0;
  next_round();
}

void PathMtu::next_round() {
  ++round_;
  round_end_ = kNever;
  next_ = 0;
  while (candidates_[next_] > most_wanted()) ++next_;
}

void PathMtu::doubt(Time now) {
  lost_runs_ = 0;
  growth_ = kFirstGrowth;
  growth_at_ = now;
  if (confirmed_ > kBase) {
    begin(true);
  } else {
    on_traffic(now);
  }
}

void PathMtu::on_traffic(Time now) {
  if (searching_ || now < growth_at_) return;
  growth_at_ = kNever;
  if (confirmed_ < candidates_[0]) begin(false);
}

std::size_t PathMtu::next_probe() const {
  if (!searching_ || next_ == count_ || candidates_[next_] <= best_) return 0;
  return candidates_[next_];
}

void PathMtu::on_probe_sent(Time now, Duration wait) {
  ++next_;
  if (next_probe() == 0) round_end_ = now + std::max(wait, kLeastRound);
}

void PathMtu::on_probe_acked(std::size_t bytes, Time now) {
  if (!searching_) return on_proof(bytes, now);
  answered_ = true;
  best_ = std::max(best_, std::min(bytes, most_wanted()));
  if (!doubting_) confirmed_ = std::max(confirmed_, best_);
  if (best_ == most_wanted()) finish(now);
}

bool PathMtu::on_timer(Time now) {
  if (!searching_ || now < round_end_) return false;
  // A path that answers nothing at all is no black hole: the question stays open.
  if (doubting_ && !answered_) --round_;
  if (round_ < kRounds) {
    next_round();
    return false;
  }
  finish(now);
  return true;
}

void PathMtu::finish(Time now) {
  if (doubting_) {
    lost_runs_ = 0;
    if (best_ < confirmed_) {
      confirmed_ = std::max(best_, kBase);
      growth_ = kFirstGrowth;
      trust_ = kFirstTrust;
    } else {
      trusted_until_ = now + trust_;
      trust_ = std::min(2 * trust_, kLastTrust);
    }
  } else {
    growth_ = std::min(2 * growth_, kLastGrowth);
  }
  growth_at_ = confirmed_ < candidates_[0] ? now + growth_ : kNever;
  searching_ = doubting_ = false;
  round_end_ = kNever;
}

void PathMtu::on_data_acked(std::size_t bytes, Time sent) {
  if (bytes <= kBase) return;
  if (sent >= good_sent_ || bytes > good_bytes_) {
    good_bytes_ = bytes;
    good_sent_ = sent;
  }
  if (bytes >= lost_bytes_) lost_runs_ = 0;
}

void PathMtu::on_data_lost(std::size_t bytes, Time sent, Time now) {
  if (bytes <= kBase || doubting_ || confirmed_ == kBase) return;
  // Something as large has got through since: an ordinary loss.
  if (good_sent_ >= sent && good_bytes_ >= bytes) return;
  if (lost_runs_++ == 0) {
    first_lost_ = now;
    lost_bytes_ = bytes;
  }
  lost_bytes_ = std::min(lost_bytes_, bytes);
  const bool again = lost_runs_ > 1 && sent >= first_lost_;  // a retransmission, lost as well
  if ((again || lost_runs_ >= kSuspiciousRuns) && now >= trusted_until_) begin(true);
}

}  // namespace taco::harp
