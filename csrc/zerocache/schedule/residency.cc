#include "zerocache/schedule/residency.h"

#include "base/assert.h"

namespace taco::zerocache {
namespace {

constexpr Tier kAll[] = {Tier::kDevice, Tier::kHost, Tier::kDisk};

}  // namespace

Residency::Residency(const Capacities& capacities, std::size_t pages)
    : pages_(pages), free_{capacities.device, capacities.host, capacities.disk} {
  for (auto& tier : evictable_) {
    for (PageHeap& heap : tier) heap.resize(pages);
  }
  spare_slots_.resize(pages);
}

bool Residency::leaving(PageId page, Tier tier) const {
  const Page& state = pages_[page];
  for (const Tier to : kAll) {
    if ((state.arriving & bit(to)) != 0 && state.source[index_of(to)] == tier) return true;
  }
  return false;
}

void Residency::place(PageId page, Tier tier) {
  TACO_ASSERT(pages_[page].valid == 0 && free(tier) > 0);
  --free_[index_of(tier)];
  pages_[page].valid = bit(tier);
  set_content(page, true);
}

void Residency::set_next_use(PageId page, Position at) {
  if (pages_[page].next_use == at) return;
  pages_[page].next_use = at;
  classify(page);
}

void Residency::start(PageId page, Tier from, Tier to) {
  TACO_ASSERT(has(page, from) && !holds(page, to) && free(to) > 0, "page %u, tier %d to %d", page,
              index_of(from), index_of(to));
  --free_[index_of(to)];
  pages_[page].arriving |= bit(to);
  pages_[page].source[index_of(to)] = from;
  classify(page);
}

Residency::Finished Residency::finish(PageId page, Tier to, bool copied) {
  TACO_ASSERT(arriving(page, to));
  Page& state = pages_[page];
  const Tier from = state.source[index_of(to)];
  Finished finished{copied && (state.spoilt & bit(to)) == 0, false};
  unmark(state.arriving, to);
  unmark(state.spoilt, to);
  if (finished.arrived) {
    state.valid |= bit(to);
  } else {
    ++free_[index_of(to)];
  }
  if ((state.lingering & bit(from)) != 0 && !leaving(page, from)) {
    unmark(state.lingering, from);
    ++free_[index_of(from)];
    finished.released = true;
  }
  classify(page);
  return finished;
}

bool Residency::outdate(PageId page, Tier tier) {
  TACO_ASSERT(has(page, tier) && !pinned(page, tier));
  Page& state = pages_[page];
  unmark(state.valid, tier);
  const bool read = leaving(page, tier);
  if (read) {
    state.lingering |= bit(tier);
  } else {
    ++free_[index_of(tier)];
  }
  classify(page);
  return !read;
}

void Residency::take(PageId page, Tier tier) {
  TACO_ASSERT(!holds(page, tier) && free(tier) > 0 && !has_content(page));
  --free_[index_of(tier)];
  pages_[page].valid |= bit(tier);
  classify(page);
}

bool Residency::idle(PageId page, Tier tier) const {
  return has(page, tier) && !pinned(page, tier) && !leaving(page, tier);
}

bool Residency::droppable(PageId page, Tier tier) const {
  const Page& state = pages_[page];
  return idle(page, tier) && (!state.content || (state.valid & ~bit(tier)) != 0);
}

void Residency::drop(PageId page, Tier tier) {
  TACO_ASSERT(droppable(page, tier), "page %u, tier %d", page, index_of(tier));
  unmark(pages_[page].valid, tier);
  ++free_[index_of(tier)];
  classify(page);
}

void Residency::pin(PageId page, Tier tier) {
  pages_[page].pinned |= bit(tier);
  classify(page);
}

void Residency::unpin(PageId page, Tier tier) {
  unmark(pages_[page].pinned, tier);
  classify(page);
}

void Residency::spoil(PageId page, Tier tier) {
  Page& state = pages_[page];
  state.spoilt |= static_cast<std::uint8_t>(state.arriving & ~bit(tier));
}

void Residency::set_content(PageId page, bool content) {
  bool& now = pages_[page].content;
  if (content && !now) ++with_content_;
  if (!content && now) --with_content_;
  now = content;
  classify(page);
}

Residency::Class Residency::class_of(const Page& page, Tier tier) const {
  if (!page.content || (page.valid & bit(other_memory(tier))) != 0) return kFree;
  return (page.valid & bit(Tier::kDisk)) != 0 ? kClean : kSole;
}

void Residency::classify(PageId page) {
  const Page& state = pages_[page];
  for (const Tier tier : kMemory) {
    const bool may_go = idle(page, tier);
    const Class kind = class_of(state, tier);
    // An operator has it in the other memory: nothing is lost here.
    const bool used_there = kind == kFree && pinned(page, other_memory(tier));
    for (int each = 0; each < kClasses; ++each) {
      PageHeap& heap = evictable_[index_of(tier)][each];
      if (may_go && each == kind) {
        heap.set(page, used_there ? kNeverUsed : state.next_use);
      } else {
        heap.remove(page);
      }
    }
  }
  const bool spare = (state.valid & bit(Tier::kDisk)) != 0 &&
                     (state.valid & ~bit(Tier::kDisk)) != 0 && !leaving(page, Tier::kDisk);
  if (spare) {
    spare_slots_.set(page, -state.next_use);
  } else {
    spare_slots_.remove(page);
  }
}

}  // namespace taco::zerocache
