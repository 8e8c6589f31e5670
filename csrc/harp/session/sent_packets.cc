#include "harp/session/sent_packets.h"

#include <algorithm>
#include <bit>

namespace taco::harp {
namespace {

constexpr std::size_t kFirstCapacity = 16;

// Bits of `run` whose numbers lie in [first, last].
std::uint64_t mask_of(const SentRun& run, std::uint64_t first, std::uint64_t last) {
  const std::uint64_t from = std::max(first, run.first) - run.first;
  const std::uint64_t to = std::min(last, run.last()) - run.first;
  return (~std::uint64_t{0} >> (63 - (to - from))) << from;
}

}  // namespace

void SentPackets::add(const SentRun& run) {
  if (size_ == ring_.size()) {
    std::vector<SentRun> larger(std::max(kFirstCapacity, 2 * ring_.size()));
    for (std::size_t i = 0; i < size_; ++i) larger[i] = at(i);
    ring_.swap(larger);
    head_ = 0;
  }
  ++size_;
  at(size_ - 1) = run;
  in_flight_ += static_cast<std::uint32_t>(std::popcount(run.pending));
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
    const std::uint64_t covered = mask_of(run, range.first, range.last);
    const std::uint64_t fresh = covered & run.pending;
    const std::uint64_t late = covered & run.lost;
    if ((fresh | late) == 0) continue;
    run.pending &= ~fresh;
    run.lost &= ~late;
    const auto fresh_count = static_cast<std::uint32_t>(std::popcount(fresh));
    const auto late_count = static_cast<std::uint32_t>(std::popcount(late));
    in_flight_ -= fresh_count;
    lost_ -= late_count;
    outcome.newly_acked += fresh_count;
    outcome.spurious += late_count;
    const std::uint64_t newest = run.first + 63 - std::countl_zero(fresh | late);
    if (newest > outcome.newest) {
      outcome.newest = newest;
      outcome.newest_sent = run.sent;
    }
    listener.on_run_acked(run, fresh | late);
  }
}

bool SentPackets::on_ack(const wire::Ack& ack, std::uint64_t next_number, Time now,
                         Listener& listener, AckOutcome& outcome) {
  if (ack.ranges[0].last >= next_number) return false;
  for (std::uint32_t i = 0; i < ack.count; ++i) {
    if (size_ == 0 || ack.ranges[i].last < at(0).first) break;
    ack_range(ack.ranges[i], listener, outcome);
  }
  largest_acked_ = std::max(largest_acked_, ack.ranges[0].last);
  pop_finished();
  for (std::size_t i = 0; i < size_ && at(i).first < largest_acked_; ++i) {
    if (at(i).overtaken == 0) at(i).overtaken = now;
  }
  return true;
}

// In flight, and something later has been acknowledged.
std::uint64_t SentPackets::overtaken_mask(const SentRun& run) const {
  if (run.first >= largest_acked_) return 0;
  return run.last() <= largest_acked_ ? run.pending
                                      : run.pending & mask_of(run, run.first, largest_acked_);
}

std::uint32_t SentPackets::detect_lost(Time now, Duration window, Time not_before,
                                       Listener& listener) {
  if (now < not_before) return 0;
  std::uint32_t count = 0;
  for (std::size_t i = 0; i < size_; ++i) {
    SentRun& run = at(i);
    if (run.overtaken == 0) break;
    const std::uint64_t mask = overtaken_mask(run);
    if (mask == 0 || now - run.overtaken < window) continue;
    run.pending &= ~mask;
    run.lost |= mask;
    const auto packets = static_cast<std::uint32_t>(std::popcount(mask));
    in_flight_ -= packets;
    lost_ += packets;
    count += packets;
    listener.on_run_lost(run, mask);
  }
  return count;
}

Time SentPackets::next_loss(Duration window, Time not_before) const {
  for (std::size_t i = 0; i < size_ && at(i).overtaken != 0; ++i) {
    if (overtaken_mask(at(i)) != 0) {
      return std::max(at(i).overtaken + window, not_before);
    }
  }
  return kNever;
}

void SentPackets::forget_lost(Time when) {
  if (lost_ == 0) return;
  for (std::size_t i = 0; i < size_ && at(i).sent < when; ++i) {
    lost_ -= static_cast<std::uint32_t>(std::popcount(at(i).lost));
    at(i).lost = 0;
  }
  pop_finished();
}

void SentPackets::pop_finished() {
  while (size_ > 0 && (at(0).pending | at(0).lost) == 0) {
    head_ = (head_ + 1) & (ring_.size() - 1);
    --size_;
  }
}

void SentPackets::trim() {
  if (size_ == 0) std::vector<SentRun>().swap(ring_);
}

}  // namespace taco::harp
