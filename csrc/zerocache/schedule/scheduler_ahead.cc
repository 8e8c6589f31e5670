// Looks along the trace: which pages it will need, and when it is time to ask for them.
#include <algorithm>

#include "zerocache/schedule/scheduler.h"
#include "zerocache/schedule/scheduler_marks.h"

namespace taco::zerocache {
namespace {

// Copies are not as regular as the figures that they are planned with: time is left for as many
// more pages as may come in a row, and for each of them twice what it takes.
constexpr std::size_t kBurst = 8;
constexpr int kSafety = 2;

}  // namespace

const Use* Scheduler::use_at(Position at) const {
  at -= base_;
  for (const Trace* trace : course_) {
    if (trace == nullptr) return nullptr;
    if (at < trace->size()) return &trace->at(at);
    at -= trace->size();
  }
  return nullptr;
}

bool Scheduler::next_used_in(PageId page, Tier tier) const {
  const Position next = pages_.next_use(page);
  const Use* const use = next >= now_at() ? use_at(next) : nullptr;
  return use != nullptr &&
         std::any_of(use->accesses.begin(), use->accesses.end(), [&](const Access& access) {
           return access.page == page && access.tier == tier && !access.anywhere;
         });
}

void Scheduler::look_ahead(Tier tier) {
  Cursor& cursor = cursors_[index_of(tier)];
  if (run_ == nullptr || course_[0] == nullptr) return;
  if (cursor.at < now_at()) cursor = {now_at(), 0};
  for (const Use* use = use_at(cursor.at); use != nullptr; use = use_at(cursor.at)) {
    for (; cursor.access < use->accesses.size(); ++cursor.access) {
      const Access& access = use->accesses[cursor.access];
      if (!concerns(tier, access)) continue;
      if (!due(tier, cursor.at)) {
        if (ahead_count_[index_of(tier)] < look_ahead_) {
          again_ = std::min(again_, now_ + time_until(cursor.at) - horizon(tier));
        }
        return;
      }
      if (!has_spare(tier) && (ahead_[access.page] & bit(tier)) == 0) {
        ahead_[access.page] |= bit(tier);
        ++ahead_count_[index_of(tier)];
      }
      want(access.page, tier, cursor.at);
    }
    cursor = {cursor.at + 1, 0};
  }
}

// A copy of the page is gone: if its next use has been looked at already, it is looked at again.
void Scheduler::look_back(PageId page) {
  const Position next = pages_.next_use(page);
  for (const Tier each : kMemory) {
    Cursor& cursor = cursors_[index_of(each)];
    const Use* const use = next < cursor.at && next >= now_at() ? use_at(next) : nullptr;
    if (use == nullptr) continue;
    const bool missing = std::any_of(
        use->accesses.begin(), use->accesses.end(),
        [&](const Access& access) { return access.page == page && concerns(each, access); });
    if (missing) cursor = {next, 0};
  }
}

// Whether something has to happen in the tier for this access: to have the page there or, in host
// memory, to have it off the disk.
bool Scheduler::concerns(Tier tier, const Access& access) const {
  const PageId page = access.page;
  const auto coming = [&](Tier where) {
    return pages_.has(page, where) || pages_.arriving(page, where) ||
           wanted_[index_of(where)][page] != kNoPosition;
  };
  if (given_up_[page] != 0) return false;
  if (access.anywhere) {
    // Off the disk, if it is nowhere else.
    const bool somewhere = coming(Tier::kHost) || coming(Tier::kDevice);
    return tier == Tier::kHost && !somewhere && access.reads && pages_.has_content(page);
  }
  if (access.tier == tier) return !coming(tier) && (!access.reads || pages_.has_content(page));
  if (tier == Tier::kDevice || !access.reads) return false;
  return pages_.has(page, Tier::kDisk) && !coming(Tier::kHost) &&
         !pages_.has(page, Tier::kDevice) && !pages_.arriving(page, Tier::kDevice);
}

// More frames than those that wait for one will take.
bool Scheduler::has_spare(Tier tier) const { return pages_.free(tier) > waiting_for(tier) + 1; }

// Memory that is not used otherwise is filled at once; in the place of something else no earlier
// than is safe.
bool Scheduler::due(Tier tier, Position at) const {
  if (has_spare(tier)) return true;
  if (ahead_count_[index_of(tier)] >= look_ahead_) return false;
  return time_until(at) <= horizon(tier);
}

// If no operator waits.
Duration Scheduler::time_until(Position at) const {
  const Position next = std::min(run_->follower.position(), course_[0]->size());
  Duration start = -course_[0]->start_of(next);
  // An unknown operator is taken to have come in the place of the one that was expected.
  if (run_->follower.off_course() && next < course_[0]->size())
    start -= course_[0]->at(next).compute;
  if (!current_.empty() && next > 0) {
    const Duration done = computing_since_ == kNever ? 0 : now_ - computing_since_;
    start += std::max<Duration>(0, course_[0]->at(next - 1).compute - done);
  }
  at -= base_;
  for (const Trace* each : course_) {
    if (each == nullptr) break;
    if (at < each->size()) return start + each->start_of(at);
    start += each->start_of(each->size());
    at -= each->size();
  }
  return start;
}

Duration Scheduler::horizon(Tier tier) const {
  const auto time_of = [&](Way in, Way out) {
    const Duration one = costs_.share_of(in);
    const auto before = static_cast<Duration>(waiting_for(tier) + kBurst);
    // A page that has to go first takes its time too.
    return kSafety * (before * one + costs_.time_of(in) + costs_.time_of(out));
  };
  const Duration device = time_of(Way::kUpload, Way::kDownload);
  if (tier == Tier::kDevice) return device;
  return time_of(Way::kRead, Way::kWrite) + (capacities_.device > 0 ? device : 0);
}

void Scheduler::want(PageId page, Tier tier, Position at) {
  Position& wanted = wanted_[index_of(tier)][page];
  if (wanted != kNoPosition && wanted <= at) return;
  if (wanted == kNoPosition) {
    wants_.push_back({page, tier});
    if (wants_.size() > prune_at_) prune_wants();
  }
  wanted = at;
  route(page);
}

void Scheduler::unwant(PageId page, Tier tier) {
  wanted_[index_of(tier)][page] = kNoPosition;
  route(page);
}

void Scheduler::prune_wants() {
  std::erase_if(wants_, [this](const auto& want) {
    const auto [page, tier] = want;
    return wanted_[index_of(tier)][page] == kNoPosition && (ahead_[page] & bit(tier)) == 0;
  });
  prune_at_ = std::max<std::size_t>(1024, 2 * wants_.size());
}

void Scheduler::no_longer_ahead(PageId page, Tier tier) {
  if ((ahead_[page] & bit(tier)) == 0) return;
  unmark(ahead_[page], tier);
  --ahead_count_[index_of(tier)];
}

// Each page is fetched ahead once while an operator computes or waits, so that copies end, however
// small memory is.
void Scheduler::give_up(PageId page) {
  given_up_[page] = 1;
  for (const Tier tier : kMemory) {
    if ((needed_[page] & bit(tier)) == 0) wanted_[index_of(tier)][page] = kNoPosition;
  }
}

void Scheduler::look_at_given_up() {
  for (const PageId page : fetches_) {
    fetched_[page] = 0;
    if (given_up_[page] == 0) continue;
    given_up_[page] = 0;
    look_back(page);
  }
  fetches_.clear();
}

// The way ahead is another than was thought.
void Scheduler::restart_looking() {
  for (const auto& [page, tier] : wants_) {
    if ((needed_[page] & bit(tier)) == 0) unwant(page, tier);
    no_longer_ahead(page, tier);
  }
  wants_.clear();
  for (Cursor& cursor : cursors_) cursor = {now_at(), 0};
}

}  // namespace taco::zerocache
