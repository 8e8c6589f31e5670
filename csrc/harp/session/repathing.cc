#include "harp/session/repathing.h"

#include <algorithm>
#include <utility>

namespace taco::harp {

bool Repathing::is_same(std::span<const Reading> paths) const {
  return std::equal(paths.begin(), paths.end(), kept_.begin(), kept_.end(),
                    [](const Reading& now, const Kept& kept) { return now.path == kept.path; });
}

void Repathing::begin(std::span<const Reading> paths, std::uint64_t random, Time not_before) {
  kept_.clear();
  for (const Reading& path : paths) kept_.push_back({path.path, path.acked, 0});
  counts_from_ = not_before;
  counted_ = 0;
  wanted_ = kLook + static_cast<Duration>(random % static_cast<std::uint64_t>(kLook));
}

// True: enough has been measured.
bool Repathing::note(std::span<const Reading> paths, Time now) {
  const Duration gap = now - std::exchange(looked_, now);
  const bool counts = gap <= kPause && now - gap >= counts_from_ &&
                      std::ranges::all_of(paths, [](const Reading& path) { return path.limited; });
  for (std::size_t i = 0; i < paths.size(); ++i) {
    const std::uint64_t more = paths[i].acked - std::exchange(kept_[i].last, paths[i].acked);
    if (counts) kept_[i].acked += more;
  }
  if (counts) counted_ += gap;
  return counted_ >= wanted_;
}

std::optional<wire::PathMove> Repathing::look(std::span<const Reading> paths, std::uint64_t random,
                                              Time now) {
  if (!is_same(paths)) {
    // Another one has died, or come: what was measured says nothing about these.
    if (!stage_.is(Stage::kMeasuring)) stage_.go(Stage::kMeasuring);
    looked_ = now;
    begin(paths, random, now);
    return std::nullopt;
  }
  const bool enough = note(paths, now);
  if (is_moving()) {
    if (now - moving_ < kLongestMove) return std::nullopt;
    if (stage_.is(Stage::kMoving)) fail(now);
    stage_.go(Stage::kMeasuring);
    begin(paths, random, now);
    return std::nullopt;
  }
  if (!enough) return std::nullopt;
  std::uint64_t acked = 0;
  for (const Kept& kept : kept_) acked += kept.acked;
  const double rate = static_cast<double>(acked) / static_cast<double>(counted_);
  const auto move = stage_.is(Stage::kJudging) ? judge(rate, now) : choose(rate, now);
  begin(paths, random, now);
  return move;
}

std::optional<wire::PathMove> Repathing::judge(double rate, Time now) {
  if (rate < kBetter * rate_) {
    fail(now);
  } else {
    in_vain_ = 0;
    not_before_ = now;
  }
  const bool is_worse = rate < kWorse * rate_;
  if (is_worse) {
    stage_.go(Stage::kReturning);
    moving_ = now;
    return wire::PathMove{moved_, true};
  }
  stage_.go(Stage::kMeasuring);
  return std::nullopt;
}

void Repathing::fail(Time now) {
  not_before_ = now + (kFirstWait << in_vain_);
  ++in_vain_;
}

std::optional<wire::PathMove> Repathing::choose(double rate, Time now) {
  if (gave_up()) {
    if (rate > kFallen * rate_) return std::nullopt;
    in_vain_ = 0;
    not_before_ = now;
  }
  if (now < not_before_) return std::nullopt;
  stage_.go(Stage::kMoving);
  moving_ = now;
  rate_ = rate;
  moved_ = std::ranges::min_element(kept_, {}, &Kept::acked)->path;
  return wire::PathMove{moved_, false};
}

void Repathing::on_moved(Time now) {
  if (stage_.is(Stage::kMoving)) {
    stage_.go(Stage::kJudging);
  } else if (!stage_.is(Stage::kMeasuring)) {
    stage_.go(Stage::kMeasuring);
  }
  counted_ = 0;
  for (Kept& kept : kept_) kept.acked = 0;
  counts_from_ = now + kHoldDown;
}

bool Repathing::may_oblige(Time now) {
  if (obliged_ != 0 && now - obliged_ < kHoldDown) return false;
  obliged_ = now;
  return true;
}

}  // namespace taco::harp
