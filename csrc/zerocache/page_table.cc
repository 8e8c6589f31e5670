#include "zerocache/page_table.h"

#include "base/assert.h"

namespace taco::zerocache {

PageTable::Pages* PageTable::list_of(const PageEntry& entry) {
  if (entry.tier == Tier::kDisk || entry.moving || !entry.slot.exists()) return nullptr;
  return entry.clean ? &kept_ : &out_of_date_;
}

// Keeps each page in the list that its state asks for, at its place if that is the same list.
template <class Change>
void PageTable::change(PageId page, const Change& change) {
  PageEntry& entry = entries_[page];
  Pages* const before = list_of(entry);
  change(entry);
  TACO_ASSERT(!entry.clean || entry.slot.exists(), "page %u is clean without a slot", page);
  TACO_ASSERT(entry.tier != Tier::kDisk || entry.clean, "page %u is nowhere", page);
  Pages* const after = list_of(entry);
  if (before == after) return;
  if (before != nullptr) before->erase(entry);
  if (after != nullptr) after->push_back(entry);
}

void PageTable::set_dirty(PageId page) {
  change(page, [&](PageEntry& entry) {
    TACO_ASSERT(entry.tier != Tier::kDisk, "page %u is written but not in memory", page);
    TACO_ASSERT(!entry.moving, "page %u is written while it moves", page);
    entry.clean = false;
  });
}

void PageTable::set_in_memory(PageId page, Tier tier) {
  TACO_ASSERT(tier != Tier::kDisk);
  change(page, [&](PageEntry& entry) { entry.tier = tier; });
}

void PageTable::drop(PageId page) {
  change(page, [&](PageEntry& entry) {
    TACO_ASSERT(entry.clean, "page %u is dropped though its newest bytes are in memory", page);
    TACO_ASSERT(!entry.moving, "page %u is dropped while it moves", page);
    entry.tier = Tier::kDisk;
  });
}

Generation PageTable::begin_write(PageId page, Slot slot) {
  change(page, [&](PageEntry& entry) {
    TACO_ASSERT(!entry.moving && !entry.clean && entry.tier != Tier::kDisk,
                "page %u is written back though it is clean or moves", page);
    entry.moving = true;
    entry.slot = slot;
    ++entry.generation;
  });
  return entries_[page].generation;
}

void PageTable::end_write(PageId page, bool succeeded, std::uint64_t checksum) {
  change(page, [&](PageEntry& entry) {
    TACO_ASSERT(entry.moving);
    entry.moving = false;
    entry.clean = succeeded;
    if (!succeeded) return;
    entry.former = entry.written;
    entry.written = {entry.generation, checksum};
  });
}

void PageTable::begin_read(PageId page) {
  change(page, [&](PageEntry& entry) {
    TACO_ASSERT(!entry.moving && entry.clean, "page %u is read though there is no slot", page);
    entry.moving = true;
  });
}

void PageTable::end_read(PageId page) {
  change(page, [&](PageEntry& entry) {
    TACO_ASSERT(entry.moving);
    entry.moving = false;
  });
}

PageId PageTable::spare_slot() const {
  const PageEntry* entry = out_of_date_.front();
  if (entry == nullptr) entry = kept_.front();
  return entry == nullptr ? kNoPage : static_cast<PageId>(entry - entries_.data());
}

Slot PageTable::take_slot(PageId page) {
  const Slot slot = entries_[page].slot;
  change(page, [&](PageEntry& entry) {
    TACO_ASSERT(entry.tier != Tier::kDisk && !entry.moving, "page %u lives in its slot", page);
    entry.slot = {};
    entry.clean = false;
  });
  return slot;
}

}  // namespace taco::zerocache
