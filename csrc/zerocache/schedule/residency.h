// The page table of the scheduler: which tiers hold a page, which copies are under way, and what
// may be evicted where. Every page that holds something has a copy in one tier at least; copies in
// several tiers are equal. A copy under way holds its frame (or disk slot) from its start.
//
// Knows no trace and takes no decision. One thread at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "zerocache/pages/page.h"
#include "zerocache/pages/page_heap.h"
#include "zerocache/schedule/trace.h"

namespace taco::zerocache {

inline constexpr int kTiers = 3;
constexpr int index_of(Tier tier) { return static_cast<int>(tier); }
inline constexpr Tier kMemory[] = {Tier::kDevice, Tier::kHost};
// The other one of device and host.
constexpr Tier other_memory(Tier tier) {
  return tier == Tier::kDevice ? Tier::kHost : Tier::kDevice;
}

// Sets of tiers, a bit for each.
constexpr std::uint8_t bit(Tier tier) { return static_cast<std::uint8_t>(1u << index_of(tier)); }
inline void unmark(std::uint8_t& tiers, Tier tier) {
  tiers &= static_cast<std::uint8_t>(~bit(tier));
}

// Frames of the device and of the host, slots of the disk.
struct Capacities {
  std::uint32_t device = 0, host = 0, disk = 0;
  std::uint32_t of(Tier tier) const {
    return tier == Tier::kDevice ? device : tier == Tier::kHost ? host : disk;
  }
};

class Residency {
 public:
  Residency(const Capacities& capacities, std::size_t pages);

  // A page's first copy. `tier` has room.
  void place(PageId page, Tier tier);

  bool has(PageId page, Tier tier) const { return (pages_[page].valid & bit(tier)) != 0; }
  bool arriving(PageId page, Tier tier) const { return (pages_[page].arriving & bit(tier)) != 0; }
  // Has, gets, or (outdated, but still being read) has not yet given back a frame there.
  bool holds(PageId page, Tier tier) const {
    const Page& state = pages_[page];
    return ((state.valid | state.arriving | state.lingering) & bit(tier)) != 0;
  }
  // A copy of it is under way from this tier.
  bool leaving(PageId page, Tier tier) const;
  bool has_content(PageId page) const { return pages_[page].content; }
  Position next_use(PageId page) const { return pages_[page].next_use; }
  std::uint32_t free(Tier tier) const { return free_[index_of(tier)]; }
  std::size_t size() const { return pages_.size(); }
  // Pages that hold something.
  std::size_t with_content() const { return with_content_; }

  void set_next_use(PageId page, Position at);

  // A copy starts: `from` has the page, `to` has a free frame and not the page.
  void start(PageId page, Tier from, Tier to);
  // The end of a copy.
  struct Finished {
    bool arrived;   // false where the page was written meanwhile, or the copy failed: the frame is
                    // free
    bool released;  // the frame that it was read from was outdated, and is free now
  };
  Finished finish(PageId page, Tier to, bool copied);
  // A frame for a page that is about to be written whole.
  void take(PageId page, Tier tier);
  // A copy that is not the newest any more. False while it is still being read: finish() frees it.
  bool outdate(PageId page, Tier tier);
  // May this copy go at once? Not the only one of a page that holds something, not one in use.
  bool droppable(PageId page, Tier tier) const;
  void drop(PageId page, Tier tier);

  // Keeps a page that an operator uses from being evicted.
  void pin(PageId page, Tier tier);
  void unpin(PageId page, Tier tier);
  bool pinned(PageId page, Tier tier) const { return (pages_[page].pinned & bit(tier)) != 0; }
  // An operator writes to the page in `tier`: copies under way to elsewhere are worthless.
  void spoil(PageId page, Tier tier);
  // Whether the page holds anything that is worth keeping.
  void set_content(PageId page, bool content);

  // Pages that may go, by what it costs. A page is in one class of each tier at most.
  //   kFree   the same is nearer to the processor, or the page holds nothing, or (device) in host
  //           memory: it is dropped, and costs no byte of a slower tier to have back
  //   kClean  on disk too
  //   kSole   nowhere else: it has to be copied first
  enum Class { kFree, kClean, kSole, kClasses };
  const PageHeap& evictable(Tier tier, Class kind) const {
    return evictable_[index_of(tier)][kind];
  }
  // Slots of pages that are in memory too; the ones used soonest on top.
  const PageHeap& spare_slots() const { return spare_slots_; }

 private:
  struct Page {
    Position next_use = kNeverUsed;
    std::uint8_t valid = 0, arriving = 0, lingering = 0, spoilt = 0, pinned = 0;  // bits by tier
    Tier source[kTiers] = {};  // of the copy that arrives there
    bool content = false;
  };
  // A copy that nobody uses and nothing reads.
  bool idle(PageId page, Tier tier) const;
  Class class_of(const Page& page, Tier tier) const;
  void classify(PageId page);

  std::vector<Page> pages_;
  std::array<std::uint32_t, kTiers> free_;
  std::size_t with_content_ = 0;
  std::array<std::array<PageHeap, kClasses>, 2> evictable_;  // of the device, of the host
  PageHeap spare_slots_;
};

}  // namespace taco::zerocache
