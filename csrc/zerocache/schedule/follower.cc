#include "zerocache/schedule/follower.h"

#include <algorithm>

namespace taco::zerocache {
namespace {

// So far ahead an operator is taken for the one that was passed over at once; farther away, or
// back, the one before it has to be right too. Parts that are used many times in a run (a tied
// embedding, an expert's page under the key of its layer) would lead astray otherwise.
constexpr Position kNear = 32;
// A detour whose weight has fallen below this, after 8 runs in a row without it, is forgotten:
// 2^-8.
constexpr double kForgotten = 1.0 / 256;
// How usual a detour has to be to become the way. What only adds operators is worth having in the
// trace though they are often passed over, which costs little; what only passes over some is no
// reason to forget them before they have been missing in six runs in a row.
constexpr double kUsual = 0.6, kUsualToAdd = 0.3, kUsualToRemove = 0.98;

}  // namespace

bool Follower::Detour::usual() const {
  if (uses.empty()) return weight > kUsualToRemove;
  return weight > (from == rejoin ? kUsualToAdd : kUsual);
}

void Follower::begin_run() {
  began_ = false;
  position_ = 0;
  current_ = kNoPosition;
  on_ = nullptr;
  unknown_.clear();
  recorded_.clear();
  new_entries_ = 0;
  took_ = nullptr;
}

Follower::Step Follower::begin(OperatorKey key, std::span<const Access> accesses) {
  began_ = true;
  if (!known_) {
    new_entries_ += 1 + accesses.size();
    recorded_.push_back({key, 0, {accesses.begin(), accesses.end()}});
    took_ = &recorded_.back().compute;
    position_ = static_cast<Position>(recorded_.size());
    return {kNoPosition, position_ - 1, position_ - 1};
  }
  if (on_ != nullptr) {
    if (on_->uses[done_].key == key) {
      took_ = nullptr;
      const Step step{kNoPosition, position_, position_};
      if (++done_ == on_->uses.size()) on_ = nullptr;
      return step;
    }
    on_ = nullptr;  // left before its end: what comes now starts where it would have led to
  }
  if (position_ < trace_.size() && trace_.at(position_).key == key) return on_trace(position_);
  if (Detour* const detour = detour_to(key)) {
    detour->taken = true;
    const Position expected = position_;
    position_ = detour->rejoin;
    if (detour->uses.empty()) {
      Step step = on_trace(position_);
      step.expected = expected;
      return step;
    }
    current_ = kNoPosition;
    took_ = nullptr;
    done_ = 1;
    on_ = done_ < detour->uses.size() ? detour : nullptr;
    return {kNoPosition, expected, position_};
  }
  return off_trace(key, accesses);
}

Follower::Step Follower::on_trace(Position at) {
  const Position expected = position_;
  if (at != expected || !unknown_.empty()) close_detour(at);
  position_ = at + 1;
  current_ = at;
  took_ = nullptr;
  return {at, expected, position_};
}

Follower::Step Follower::off_trace(OperatorKey key, std::span<const Access> accesses) {
  if (const std::optional<Position> found = look_for(key)) return on_trace(*found);
  current_ = kNoPosition;
  new_entries_ += 1 + accesses.size();
  unknown_.push_back({key, 0, {accesses.begin(), accesses.end()}});
  took_ = &unknown_.back().compute;
  return {kNoPosition, position_, position_};
}

std::optional<Position> Follower::look_for(OperatorKey key) const {
  const std::span<const Position> places = trace_.places_of(key);
  const auto later = std::lower_bound(places.begin(), places.end(), position_);
  if (later != places.end() && *later - position_ <= kNear) return *later;
  const auto follows = [&](Position at) {
    return at > 0 && !unknown_.empty() && trace_.at(at - 1).key == unknown_.back().key;
  };
  const auto ahead = std::find_if(later, places.end(), follows);
  if (ahead != places.end()) return *ahead;
  const auto behind = std::find_if(std::make_reverse_iterator(later), places.rend(), follows);
  if (behind != places.rend()) return *behind;
  return std::nullopt;
}

Follower::Detour* Follower::detour_to(OperatorKey key) {
  if (!unknown_.empty()) return nullptr;
  const auto [begin, end] = detours_.equal_range(position_);
  for (auto at = begin; at != end; ++at) {
    Detour& detour = at->second;
    const bool leads = detour.uses.empty()
                           ? detour.rejoin < trace_.size() && trace_.at(detour.rejoin).key == key
                           : detour.uses.front().key == key;
    if (leads) return &detour;
  }
  return nullptr;
}

void Follower::close_detour(Position rejoin) {
  // The last of them may already have been on the trace, only too far away to be sure.
  Position back = rejoin;
  while (!unknown_.empty() && back > 0 && back != position_ &&
         trace_.at(back - 1).key == unknown_.back().key) {
    unknown_.pop_back();
    --back;
  }
  if (back == position_ && unknown_.empty()) return;
  // Back to an earlier place is a loop that went round once more: nothing that a trace could hold.
  if (back >= position_) {
    Detour detour{position_, back, std::move(unknown_), 0, true};
    detours_.emplace(position_, std::move(detour));
  }
  unknown_.clear();
}

void Follower::took(Duration compute) {
  if (took_ != nullptr) *took_ = compute;
  if (known_ && current_ != kNoPosition && current_ == position_ - 1) {
    trace_.set_compute(current_, compute);
  }
}

bool Follower::end_run() {
  if (!began_) return false;
  const bool first = !known_;
  if (first) {
    trace_ = Trace(std::move(recorded_));
    recorded_.clear();
    known_ = true;
  } else if (!unknown_.empty() || position_ < trace_.size()) {
    close_detour(trace_.size());
  }
  bool usual = false;
  for (auto at = detours_.begin(); at != detours_.end();) {
    Detour& detour = at->second;
    detour.weight = (detour.weight + (detour.taken ? 1 : 0)) / 2;
    detour.taken = false;
    usual |= detour.usual();
    at = detour.weight < kForgotten ? detours_.erase(at) : std::next(at);
  }
  const bool changed = usual && promote();
  if (!changed) trace_.update_starts();
  find_possible_uses();
  begin_run();
  return first || changed;
}

// Builds the trace anew, with usual detours in the place of what they go around.
bool Follower::promote() {
  std::vector<Use> uses;
  std::vector<Position> moved(static_cast<std::size_t>(trace_.size()) + 1, kNoPosition);
  std::multimap<Position, Detour> detours;
  Position at = 0;
  const auto keep_until = [&](Position end) {
    for (; at < end; ++at) {
      moved[static_cast<std::size_t>(at)] = static_cast<Position>(uses.size());
      uses.push_back(trace_.at(at));
    }
  };
  for (auto& [from, detour] : detours_) {
    if (!detour.usual() || from < at) continue;
    keep_until(from);
    const auto start = static_cast<Position>(uses.size());
    moved[static_cast<std::size_t>(from)] = start;
    Detour old{start, 0, {}, 1 - detour.weight, false};
    for (; at < detour.rejoin; ++at) old.uses.push_back(trace_.at(at));
    uses.insert(uses.end(), detour.uses.begin(), detour.uses.end());
    old.rejoin = static_cast<Position>(uses.size());
    detours.emplace(start, std::move(old));
    detour.weight = 0;  // it is the trace now
  }
  keep_until(trace_.size());
  moved[static_cast<std::size_t>(at)] = static_cast<Position>(uses.size());
  for (auto& [from, detour] : detours_) {
    const Position start = moved[static_cast<std::size_t>(from)];
    const Position rejoin = moved[static_cast<std::size_t>(detour.rejoin)];
    if (detour.weight == 0 || start == kNoPosition || rejoin == kNoPosition) continue;
    detour.from = start;
    detour.rejoin = rejoin;
    detours.emplace(start, std::move(detour));
  }
  detours_ = std::move(detours);
  trace_ = Trace(std::move(uses));
  return true;
}

void Follower::find_possible_uses() {
  possible_.clear();
  for (const auto& [from, detour] : detours_) {
    for (const Use& use : detour.uses) {
      for (const Access& access : use.accesses) possible_.emplace_back(access.page, from);
    }
  }
  std::sort(possible_.begin(), possible_.end());
}

Position Follower::possible_use(PageId page, Position from) const {
  const auto found = std::lower_bound(possible_.begin(), possible_.end(), std::pair(page, from));
  return found == possible_.end() || found->first != page ? kNeverUsed : found->second;
}

std::span<const Use> Follower::rest_of_detour() const {
  if (on_ == nullptr) return {};
  return std::span<const Use>(on_->uses).subspan(done_);
}

}  // namespace taco::zerocache
