#include "harp/session/sent_packets.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/assert.h"

namespace taco::harp {
namespace {

constexpr std::size_t kFirstCapacity = 16;

// Bits of `run` whose numbers lie in [first, last].
std::uint64_t mask_of(const SentRun& run, std::uint64_t first, std::uint64_t last) {
  const std::uint64_t from = std::max(first, run.first) - run.first;
  const std::uint64_t to = std::min(last, run.last()) - run.first;
  return (~std::uint64_t{0} >> (63 - (to - from))) << from;
}

std::uint32_t count_of(std::uint64_t mask) {
  return static_cast<std::uint32_t>(std::popcount(mask));
}

// The part of an acknowledgement about numbers up to `last`.
wire::Ack up_to(const wire::Ack& ack, std::uint64_t last) {
  wire::Ack known = ack;
  known.count = 0;
  for (std::uint32_t i = 0; i < ack.count; ++i) {
    const wire::AckRange& range = ack.ranges[i];
    if (range.first <= last)
      known.ranges[known.count++] = {range.first, std::min(range.last, last)};
  }
  return known;
}

}  // namespace

void SentPackets::add(const SentRun& run) {
  TACO_ASSERT(size_ == 0 || at(size_ - 1).last() < run.first, "packet numbers never go back");
  if (size_ == ring_.size()) {
    std::vector<SentRun> larger(std::max(kFirstCapacity, 2 * ring_.size()));
    for (std::size_t i = 0; i < size_; ++i) larger[i] = at(i);
    ring_.swap(larger);
    head_ = 0;
  }
  ++size_;
  at(size_ - 1) = run;
  in_flight_ += count_of(run.pending);
}

void SentPackets::note_newest(const SentRun& run, std::uint64_t mask, AckOutcome& outcome) const {
  const std::uint64_t newest = run.first + 63 - std::countl_zero(mask);
  if (newest <= outcome.newest) return;
  outcome.newest = newest;
  outcome.newest_sent = run.sent;
  outcome.newest_under_way = run.under_way;
}

void SentPackets::ack_range(const wire::AckRange& range, Listener& listener, AckOutcome& outcome) {
  // First run that lies wholly above the range.
  std::size_t low = 0, high = size_;
  while (low < high) {
    const std::size_t middle = (low + high) / 2;
    (at(middle).first > range.last ? high : low) =
        at(middle).first > range.last ? middle : middle + 1;
  }
  for (std::size_t i = low; i-- > 0;) {
    SentRun& run = at(i);
    if (run.last() < range.first) break;
    const std::uint64_t fresh = mask_of(run, range.first, range.last) & run.pending;
    if (fresh == 0) continue;
    run.pending &= ~fresh;
    TACO_ASSERT(in_flight_ >= count_of(fresh));
    in_flight_ -= count_of(fresh);
    outcome.newly_acked += count_of(fresh);
    note_newest(run, fresh, outcome);
    listener.on_run_acked(run, fresh);
  }
}

// Ranges descend and the list ascends: one walk over both, from the newest down.
void SentPackets::ack_lost(const wire::Ack& ack, Listener& listener, AckOutcome& outcome) {
  bool any = false;
  std::uint32_t range = 0;
  for (std::size_t i = lost_.size(); i-- > 0;) {
    SentRun& run = lost_[i];
    while (range < ack.count && ack.ranges[range].first > run.last()) ++range;
    if (range == ack.count) break;
    std::uint64_t late = 0;
    for (std::uint32_t r = range; r < ack.count && ack.ranges[r].last >= run.first; ++r) {
      late |= mask_of(run, ack.ranges[r].first, ack.ranges[r].last) & run.pending;
    }
    if (late == 0) continue;
    run.pending &= ~late;
    any = true;
    outcome.spurious += count_of(late);
    note_newest(run, late, outcome);
    listener.on_run_acked(run, late);
  }
  if (any) std::erase_if(lost_, [](const SentRun& run) { return run.pending == 0; });
}

bool SentPackets::on_ack(const wire::Ack& ack, std::uint64_t next_number, Time now,
                         Listener& listener, AckOutcome& outcome) {
  if (ack.ranges[0].last >= next_number) {
    const wire::Ack known = up_to(ack, next_number - 1);
    return known.count > 0 && on_ack(known, next_number, now, listener, outcome);
  }
  for (std::uint32_t i = 0; i < ack.count; ++i) {
    if (size_ == 0 || ack.ranges[i].last < at(0).first) break;
    ack_range(ack.ranges[i], listener, outcome);
  }
  ack_lost(ack, listener, outcome);
  const std::uint64_t previous = largest_acked_;
  largest_acked_ = std::max(largest_acked_, ack.ranges[0].last);
  pop_finished();
  note_overtaken(previous, now);
  return true;
}

// The packets of a run that are in flight though a later one has been acknowledged.
std::uint64_t SentPackets::overtaken_mask(const SentRun& run) const {
  if (run.first >= largest_acked_) return 0;
  return run.last() <= largest_acked_ ? run.pending
                                      : run.pending & mask_of(run, run.first, largest_acked_);
}

// The packets of a run leave the interface one after another, over milliseconds on a slow one: a
// hole is as old as the acknowledgement that showed it, not as the first that reached its run.
void SentPackets::note_overtaken(std::uint64_t previous, Time now) {
  for (std::size_t i = overtaken_; i < size_ && at(i).first < largest_acked_; ++i) {
    SentRun& run = at(i);
    const std::uint64_t seen = previous < run.first ? 0 : mask_of(run, run.first, previous);
    if ((overtaken_mask(run) & ~seen) != 0) run.overtaken = now;
    if (run.last() <= largest_acked_) ++overtaken_;
  }
}

SentPackets::Losses SentPackets::detect_lost(Time now, Duration window, Time not_before,
                                             Listener& listener) {
  Losses losses;
  if (now < not_before) return losses;
  for (std::size_t i = 0; i < size_ && at(i).first < largest_acked_; ++i) {
    SentRun& run = at(i);
    const std::uint64_t mask = overtaken_mask(run);
    if (mask == 0) continue;
    if (now - run.overtaken < window) break;  // and so are those after it
    run.pending &= ~mask;
    TACO_ASSERT(in_flight_ >= count_of(mask));
    in_flight_ -= count_of(mask);
    losses.packets += count_of(mask);
    ++losses.runs;
    remember_lost(run, mask);
    listener.on_run_lost(run, mask);
  }
  if (losses.runs > 0) pop_finished();
  return losses;
}

void SentPackets::lose_all(Listener& listener) {
  for (std::size_t i = 0; i < size_; ++i) {
    SentRun& run = at(i);
    const std::uint64_t mask = std::exchange(run.pending, 0);
    if (mask == 0) continue;
    in_flight_ -= count_of(mask);
    remember_lost(run, mask);
    listener.on_run_lost(run, mask);
  }
  pop_finished();
}

Time SentPackets::next_loss(Duration window, Time not_before) const {
  for (std::size_t i = 0; i < size_ && at(i).first < largest_acked_; ++i) {
    if (overtaken_mask(at(i)) != 0) {
      return std::max(at(i).overtaken + window, not_before);
    }
  }
  return kNever;
}

void SentPackets::remember_lost(const SentRun& run, std::uint64_t mask) {
  if (lost_.empty()) lost_.reserve(kMaxLost);
  const auto after = std::find_if(lost_.rbegin(), lost_.rend(),
                                  [&](const SentRun& one) { return one.first <= run.first; });
  if (after != lost_.rend() && after->first == run.first) {
    after->pending |= mask;
    return;
  }
  const auto place = lost_.insert(after.base(), run);
  place->pending = mask;
  // The oldest give way: a loss that is forgotten counts as real.
  if (lost_.size() == kMaxLost) lost_.erase(lost_.begin(), lost_.begin() + kMaxLost / 4);
}

void SentPackets::forget_lost(Time when) {
  std::erase_if(lost_, [&](const SentRun& run) { return run.sent < when; });
}

void SentPackets::clear() {
  head_ = size_ = overtaken_ = 0;
  in_flight_ = 0;
  lost_.clear();
}

void SentPackets::pop_finished() {
  while (size_ > 0 && at(0).pending == 0) {
    head_ = (head_ + 1) & (ring_.size() - 1);
    --size_;
    if (overtaken_ > 0) --overtaken_;
  }
  TACO_ASSERT(overtaken_ <= size_ && (size_ > 0 || in_flight_ == 0));
}

void SentPackets::trim() {
  if (size_ == 0) std::vector<SentRun>().swap(ring_);
  if (lost_.empty()) std::vector<SentRun>().swap(lost_);
}

}  // namespace taco::harp
