// Checkpoints whose every byte tells which save it is of, so that a mixture of two is noticed. Test
// support.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "zerocache/checkpoint/checkpoint.h"
#include "zerocache/disk/file_system.h"
#include "zerocache/pages/layout.h"

namespace taco::testing {

// Tensors of several lengths on a few pages: small ones that share a page, one that spans three.
zerocache::Layout layout_of_saves(std::size_t page_bytes = 4096);

// Saves what belongs to number `save`; in several data files. Of several ranks, each has every
// so-manieth page, and another note.
Result<std::uint64_t> save_number(zerocache::FileSystem& files, const std::string& directory,
                                  std::uint64_t save, const zerocache::Layout& layout,
                                  zerocache::Collectives* ranks = nullptr);

struct Loaded {
  bool exists = false;     // the directory holds a checkpoint
  std::uint64_t save = 0;  // whose it is
  std::string problem;     // why it is no whole checkpoint of one save; "" if it is, or none exists
};
// Loads every tensor into `layout` and compares it.
Loaded load_any(zerocache::FileSystem& files, const std::string& directory,
                const zerocache::Layout& layout);
// The directory holds a whole checkpoint of that save, on the real file system.
void expect_save(const std::string& directory, std::uint64_t save, const zerocache::Layout& layout);

}  // namespace taco::testing
