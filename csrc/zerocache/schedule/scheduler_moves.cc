// Frames and copies: who gets which, and who has to go.
#include <algorithm>

#include "base/assert.h"
#include "zerocache/schedule/scheduler.h"
#include "zerocache/schedule/scheduler_marks.h"

namespace taco::zerocache {

Time Scheduler::decide(Time now, std::vector<Action>& actions) {
  now_ = now;
  again_ = kNever;
  look_ahead(Tier::kHost);
  look_ahead(Tier::kDevice);
  serve_all();
  if (missing_ > 0 && idle() && step_aside()) serve_all();
  // A page that came down has taken the last frame of the host, and the next one needs one too. But
  // it does not take that from the page it comes down for.
  if (capacities_.device > 0) {
    const Position waiting = soonest_waiting(Tier::kDevice);
    make_room(Tier::kHost, waiting == kNeverUsed ? kDemanded : waiting, 0, 1);
  }
  actions.insert(actions.end(), actions_.begin(), actions_.end());
  actions_.clear();
  return again_;
}

void Scheduler::serve_all() {
  for (bool any = true; any;) {
    any = false;
    for (const Tier tier : kMemory) any |= serve_blank(tier);
    for (const Way way : {Way::kUpload, Way::kDownload, Way::kRead}) any |= serve(way);
  }
}

// An operator waits and nothing can move: host memory is full of what is to go up, and the device
// of what would have to come down. One of the former makes way; it comes back by the disk.
bool Scheduler::step_aside() {
  for (const Access& access : current_) {
    const PageId page = access.page;
    if (needed_[page] != bit(Tier::kDevice) || !pages_.has(page, Tier::kHost)) continue;
    if (pages_.droppable(page, Tier::kHost)) {
      drop(page, Tier::kHost);
      return true;
    }
    if (evict_from_host(page, kDemanded)) return true;
  }
  return false;
}

void Scheduler::done(const Copy& copy, bool copied) {
  const auto [page, from, to] = copy;
  --under_way_[static_cast<int>(way_of(from, to))];
  const Residency::Finished finished = pages_.finish(page, to, copied);
  if (finished.released) actions_.push_back({Action::Kind::kDrop, {page, from, from}});
  if (!finished.arrived) actions_.push_back({Action::Kind::kDrop, {page, to, to}});
  if ((evicting_[page] & bit(from)) != 0) {
    if (!copied) fails_[static_cast<int>(way_of(from, to))] = true;
    unmark(evicting_[page], from);
    --evictions_[index_of(from)];
    // It may be needed by now sooner than what waits for its frame.
    const Position next = pages_.next_use(page);
    const bool missed = wanted_[index_of(from)][page] != kNoPosition ||
                        (next < cursors_[index_of(from)].at && next <= soonest_waiting(from));
    if (finished.arrived && !missed && pages_.droppable(page, from)) drop(page, from);
  }
  if (finished.arrived && to != Tier::kDisk) arrived(page, to);
  // A page that was on its way to the disk may be wanted in memory all the same.
  if (!copied && to != Tier::kDisk) {
    for (const Tier tier : kMemory) wanted_[index_of(tier)][page] = kNoPosition;
  }
  route(page);
}

// Puts the page into the queue of the way that it has to take next, if any.
void Scheduler::route(PageId page) {
  for (PageHeap& queue : queues_) queue.remove(page);
  for (PageHeap& queue : blanks_) queue.remove(page);
  if (writing_[page] != 0 && pages_.has_content(page)) {
    // A page that an operator writes to moves once the operator is done; but it has to be there
    // first.
    const bool there = (needed_[page] & bit(Tier::kDevice)) != 0 ? pages_.has(page, Tier::kDevice)
                                                                 : pages_.has(page, Tier::kHost);
    if (there) return;
  }
  for (const Tier tier : kMemory) {
    const Position at = wanted_[index_of(tier)][page];
    if (at == kNoPosition || pages_.holds(page, tier)) continue;
    if (!pages_.has_content(page)) {
      blanks_[index_of(tier)].set(page, -at);
    } else if (pages_.has(page, other_memory(tier))) {
      const Way way = tier == Tier::kDevice ? Way::kUpload : Way::kDownload;
      queues_[static_cast<int>(way)].set(page, -at);
    } else if (pages_.has(page, Tier::kDisk) && !pages_.holds(page, Tier::kHost)) {
      PageHeap& reads = queues_[static_cast<int>(Way::kRead)];
      if (!reads.contains(page) || wanted_[0][page] > at) reads.set(page, -at);
    }
  }
}

std::size_t Scheduler::waiting_for(Tier tier) const {
  const auto waiting = [this](Way way) { return queues_[static_cast<int>(way)].size(); };
  const std::size_t blank = blanks_[index_of(tier)].size();
  if (tier == Tier::kDevice) return blank + waiting(Way::kUpload);
  return blank + waiting(Way::kDownload) + waiting(Way::kRead);
}

// The position by which the first of the pages that wait for a frame is wanted.
Position Scheduler::soonest_waiting(Tier tier) const {
  Position soonest = kNeverUsed;
  const auto look = [&soonest](const PageHeap& queue) {
    if (!queue.empty()) soonest = std::min(soonest, -queue.top_key());
  };
  look(blanks_[index_of(tier)]);
  if (tier == Tier::kDevice) {
    look(queues_[static_cast<int>(Way::kUpload)]);
  } else {
    look(queues_[static_cast<int>(Way::kDownload)]);
    look(queues_[static_cast<int>(Way::kRead)]);
  }
  return soonest;
}

bool Scheduler::serve(Way way) {
  const PageHeap& queue = queues_[static_cast<int>(way)];
  if (queue.empty() || under_way_[static_cast<int>(way)] >= costs_.speed(way).depth) return false;
  const PageId page = queue.top();
  const Tier to = way == Way::kUpload ? Tier::kDevice : Tier::kHost;
  const Tier from = way == Way::kUpload     ? Tier::kHost
                    : way == Way::kDownload ? Tier::kDevice
                                            : Tier::kDisk;
  // The last frame of the host is for what goes down because it has to: nothing could come up
  // otherwise.
  const Position at = -queue.top_key();
  const bool last =
      capacities_.device == 0 || to == Tier::kDevice || (way == Way::kDownload && at == kDemanded);
  // No frame is taken from a page that is wanted sooner by another way.
  if (soonest_waiting(to) < at && pages_.free(to) <= 2) return false;
  if (!make_room(to, at, last ? 0 : 1, queue.size())) return false;
  // Making room may have taken away what it was for.
  if (queue.empty() || queue.top() != page) return true;
  start(page, from, to, false);
  return true;
}

bool Scheduler::serve_blank(Tier tier) {
  const PageHeap& queue = blanks_[index_of(tier)];
  if (queue.empty()) return false;
  const PageId page = queue.top();
  const Position at = -queue.top_key();
  const std::uint32_t reserve = tier == Tier::kHost && capacities_.device > 0 ? 1 : 0;
  if (soonest_waiting(tier) < at && pages_.free(tier) <= 2) return false;
  if (!make_room(tier, at, reserve, queue.size())) return false;
  pages_.take(page, tier);
  note_fetch(page, tier);
  actions_.push_back({Action::Kind::kTake, {page, tier, tier}});
  arrived(page, tier);
  route(page);
  return true;
}

// True once `tier` has more than `reserve` free frames. Else as many evictions are under way as
// there are pages that wait for a frame (`demand`), or nothing can go that is not used before `at`.
bool Scheduler::make_room(Tier tier, Position at, std::uint32_t reserve, std::size_t demand) {
  while (pages_.free(tier) <= reserve) {
    if (evictions_[index_of(tier)] >= demand) return false;
    const PageId page = victim(tier, at);
    if (page == kNoPage) return false;
    if (!evict(page, tier, at, demand) && !drop_any(tier, at)) return false;
  }
  return true;
}

// Where an operator waits, a page that can go at once goes, even if it is used sooner than one that
// cannot.
bool Scheduler::drop_any(Tier tier, Position at) {
  if (at != kDemanded) return false;
  for (const auto kind : {Residency::kFree, Residency::kClean}) {
    const PageHeap& heap = pages_.evictable(tier, kind);
    if (heap.empty() || heap.top_key() <= at) continue;
    drop(heap.top(), tier);
    return true;
  }
  return false;
}

PageId Scheduler::victim(Tier tier, Position at) const {
  struct Candidate {
    PageId page = kNoPage;
    Position next_use = -1;
  };
  const auto furthest = [&](Residency::Class kind) {
    const PageHeap& heap = pages_.evictable(tier, kind);
    return heap.empty() || heap.top_key() <= at ? Candidate{}
                                                : Candidate{heap.top(), heap.top_key()};
  };
  Candidate cheap = furthest(Residency::kFree);
  Candidate clean = furthest(Residency::kClean);
  Candidate dear = furthest(Residency::kSole);
  if (tier == Tier::kHost) {
    if (cheap.page != kNoPage) return cheap.page;
    // A page that is on the device as well goes even if it is used sooner, as long as the device
    // has it.
    const PageHeap& twice = pages_.evictable(tier, Residency::kFree);
    if (!twice.empty() && pages_.has(twice.top(), Tier::kDevice) &&
        wanted_[index_of(tier)][twice.top()] == kNoPosition && !next_used_in(twice.top(), tier)) {
      return twice.top();
    }
    cheap = clean;
  } else if (clean.next_use > dear.next_use) {
    dear = clean;
  }
  if (cheap.page == kNoPage || dear.page == kNoPage) {
    return cheap.page == kNoPage ? dear.page : cheap.page;
  }
  // A page that a detour may use at any time counts as used now.
  const auto ahead = [now = now_at()](Position next) { return std::max<Position>(0, next - now); };
  const bool stays = tier == Tier::kDevice && roams_[dear.page] != 0;
  const std::int64_t factor = stays ? kStaysFactor : kDirtyFactor;
  // ahead(dear) > factor * ahead(cheap); what is never used is too far ahead to be multiplied.
  const std::int64_t share = (ahead(dear.next_use) + factor - 1) / factor;
  return share > ahead(cheap.next_use) ? dear.page : cheap.page;
}

// True where the page is gone, or on its way.
bool Scheduler::evict(PageId page, Tier tier, Position at, std::size_t demand) {
  if (tier == Tier::kHost) {
    if (!pages_.droppable(page, tier)) return evict_from_host(page, at);
    drop(page, tier);
    return true;
  }
  const bool elsewhere = !pages_.has_content(page) || pages_.has(page, Tier::kHost);
  if (elsewhere || (pages_.has(page, Tier::kDisk) && !worth_keeping(page))) {
    drop(page, tier);
    return true;
  }
  if (pages_.holds(page, Tier::kHost)) return false;
  if (!may_evict_by(Way::kDownload)) return false;
  if (soonest_waiting(Tier::kHost) < at && pages_.free(Tier::kHost) <= 2) return false;
  if (!make_room(Tier::kHost, at, 0, demand)) return false;
  start(page, Tier::kDevice, Tier::kHost, true);
  return true;
}

bool Scheduler::may_evict_by(Way way) const {
  const auto index = static_cast<int>(way);
  return under_way_[index] < costs_.speed(way).depth && !fails_[index];
}

bool Scheduler::idle() const {
  return std::all_of(std::begin(under_way_), std::end(under_way_),
                     [](std::uint32_t copies) { return copies == 0; });
}

// Evicts a page to device memory if that has frames that nobody is about to need, else to the disk.
bool Scheduler::evict_from_host(PageId page, Position at) {
  if (pages_.holds(page, Tier::kDisk)) return false;
  if (has_spare(Tier::kDevice) && !fails_[static_cast<int>(Way::kUpload)]) {
    return evict_to_device(page);
  }
  if (pages_.free(Tier::kDisk) == 0 && !pages_.spare_slots().empty()) {
    drop(pages_.spare_slots().top(), Tier::kDisk);
  }
  if (pages_.free(Tier::kDisk) > 0 && !fails_[static_cast<int>(Way::kWrite)]) {
    if (!may_evict_by(Way::kWrite)) return false;
    start(page, Tier::kHost, Tier::kDisk, true);
    return true;
  }
  // The disk is full or takes nothing, or there is none; device memory may have room, or what the
  // host has too. But not what is waited for there as soon: the two memories would only exchange
  // pages for ever.
  return soonest_waiting(Tier::kDevice) > at && evict_to_device(page);
}

bool Scheduler::evict_to_device(PageId page) {
  if (pages_.holds(page, Tier::kDevice) || !may_evict_by(Way::kUpload)) return false;
  const PageHeap& twice = pages_.evictable(Tier::kDevice, Residency::kFree);
  if (pages_.free(Tier::kDevice) == 0 && !twice.empty()) drop(twice.top(), Tier::kDevice);
  if (pages_.free(Tier::kDevice) == 0) return false;
  start(page, Tier::kHost, Tier::kDevice, true);
  return true;
}

// Would host memory rather keep this page than what it has?
bool Scheduler::worth_keeping(PageId page) const {
  if (pages_.free(Tier::kHost) > 1) return true;
  for (const auto kind : {Residency::kFree, Residency::kClean, Residency::kSole}) {
    const PageHeap& heap = pages_.evictable(Tier::kHost, kind);
    if (!heap.empty() && heap.top_key() > pages_.next_use(page)) return true;
  }
  return false;
}

void Scheduler::start(PageId page, Tier from, Tier to, bool evicts) {
  const Way way = way_of(from, to);
  pages_.start(page, from, to);
  ++under_way_[static_cast<int>(way)];
  if (evicts) {
    evicting_[page] |= bit(from);
    ++evictions_[index_of(from)];
  } else {
    note_fetch(page, to);
  }
  actions_.push_back({Action::Kind::kCopy, {page, from, to}});
  route(page);
}

void Scheduler::drop(PageId page, Tier tier) {
  pages_.drop(page, tier);
  actions_.push_back({Action::Kind::kDrop, {page, tier, tier}});
  left_[page] |= bit(tier);
  if (tier == Tier::kDisk) return;
  no_longer_ahead(page, tier);
  if ((fetched_[page] & bit(tier)) != 0) give_up(page);
  look_back(page);
  route(page);
}

void Scheduler::note_fetch(PageId page, Tier tier) {
  if (fetched_[page] == 0) fetches_.push_back(page);
  fetched_[page] |= bit(tier);
}

void Scheduler::arrived(PageId page, Tier tier) {
  wanted_[index_of(tier)][page] = kNoPosition;
  if ((needed_[page] & bit(tier)) == 0 || pages_.pinned(page, tier)) return;
  pages_.pin(page, tier);
  if (writing_[page] != 0) pages_.spoil(page, tier);
  --missing_;
}

}  // namespace taco::zerocache
