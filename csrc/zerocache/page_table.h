// Where each page of a store is, and what its slot on disk holds. A slot is not given up when its
// page is fetched into memory: as long as nobody writes the page, dropping it again costs nothing.
// Slots of pages that are in memory are taken back only when another page needs the room.
//
// One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/list.h"
#include "zerocache/page.h"

namespace taco::zerocache {

// Room for one page in one of the slab's files.
struct Slot {
  static constexpr std::uint32_t kNoFile = std::numeric_limits<std::uint32_t>::max();
  std::uint32_t file = kNoFile;
  std::uint32_t index = 0;
  bool exists() const { return file != kNoFile; }
  bool operator==(const Slot&) const = default;
};

// Of bytes that were written to a slot in full.
struct Version {
  Generation generation = 0;
  std::uint64_t checksum = 0;
};

struct PageEntry {
  Tier tier = Tier::kHost;
  // The slot holds the newest bytes. Otherwise they are in memory alone, and the slot, if there is
  // one, holds nothing of worth. A page whose tier is kDisk is clean.
  bool clean = false;
  bool moving = false;        // its slot is being read or written
  Generation generation = 0;  // of the last write-back that was begun
  Slot slot;
  Version written;  // what the slot holds while the page is clean
  Version former;   // what was written before, to tell a stale page by
  Links<PageEntry> links;
};

class PageTable {
 public:
  // All in host memory and never written to disk.
  explicit PageTable(std::uint32_t pages) : entries_(pages) {}
  PageTable(const PageTable&) = delete;
  PageTable& operator=(const PageTable&) = delete;

  std::uint32_t size() const { return static_cast<std::uint32_t>(entries_.size()); }
  const PageEntry& operator[](PageId page) const { return entries_[page]; }

  // The page's memory is about to be written: what is in the slot is out of date from now on.
  void set_dirty(PageId page);
  // It lies in memory of this tier now, fetched or moved. Whoever fetches a page says so when its
  // bytes are there and verified.
  void set_in_memory(PageId page, Tier tier);
  // Its memory is given up. The page must be clean.
  void drop(PageId page);

  // What DiskTier does with slots. A write-back takes the next generation, whether it succeeds or
  // not, so that no two contents ever share a number.
  Generation begin_write(PageId page, Slot slot);
  void end_write(PageId page, bool succeeded, std::uint64_t checksum);
  void begin_read(PageId page);
  void end_read(PageId page);

  // Whose slot should be taken back, kNoPage if nobody's can be: one that holds nothing of worth,
  // else the one that has been clean in memory for longest.
  PageId spare_slot() const;
  // The page keeps no slot, and is dirty: its bytes must be in memory.
  Slot take_slot(PageId page);

 private:
  using Pages = List<PageEntry, &PageEntry::links>;
  Pages* list_of(const PageEntry& entry);
  template <class Change>
  void change(PageId page, const Change& change);

  std::vector<PageEntry> entries_;  // never grows: lists point into it
  Pages out_of_date_;               // in memory, dirty, with a slot
  Pages kept_;                      // in memory, clean
};

}  // namespace taco::zerocache
