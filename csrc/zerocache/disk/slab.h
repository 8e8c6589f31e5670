// The working room of a store on disk: one file of slots in each of its directories, set aside in
// full when the store is made. It lasts as long as its process: a directory is locked while it is
// in use, and what a killed process left is removed by the next one.
//
// One thread at a time; in a forked child it does nothing, not even when destroyed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "zerocache/disk/file_system.h"
#include "zerocache/pages/page.h"

namespace taco::zerocache {

// Room for one page in one of the slab's files.
struct Slot {
  static constexpr std::uint32_t kNoFile = std::numeric_limits<std::uint32_t>::max();
  std::uint32_t file = kNoFile;
  std::uint32_t index = 0;
  bool exists() const { return file != kNoFile; }
  bool operator==(const Slot&) const = default;
};

struct SlabDirectory {
  std::string path;         // of a directory that exists
  std::uint64_t bytes = 0;  // that the slab may take in it
};

class Slab {
 public:
  // kInvalidArgument for a directory that does not exist, cannot be written, has no room for a
  // page or is in use; kResource if the disk has not as many bytes free.
  static Result<std::unique_ptr<Slab>> create(FileSystem& files,
                                              const std::vector<SlabDirectory>& directories,
                                              StoreId store, std::size_t page_bytes);
  ~Slab();
  Slab(const Slab&) = delete;
  Slab& operator=(const Slab&) = delete;

  // A slot that nobody has, of the file that is least full for its size: so neighbours spread over
  // all directories. Slot{} when there is none.
  Slot take();
  void give_back(Slot slot);

  std::uint64_t slots() const;
  std::uint64_t free_slots() const;
  // By Slot::file.
  const std::vector<File*>& files() const { return files_; }
  std::uint64_t place_of(Slot slot) const;

 private:
  struct Part {
    std::unique_ptr<DirectoryLock> lock;
    std::string path;  // of the file; empty until it is made
    std::unique_ptr<File> file;
    std::uint32_t slots = 0;
    std::vector<std::uint32_t> free;  // the last one is taken next
  };

  Slab(FileSystem& file_system, StoreId store, std::size_t page_bytes);
  Status add(const SlabDirectory& directory, std::uint32_t index, std::uint32_t count);
  Status remove_stale(const std::string& directory);

  FileSystem& file_system_;
  const StoreId store_;
  const std::size_t page_bytes_;
  const std::uint32_t generation_;
  std::vector<Part> parts_;
  std::vector<File*> files_;
};

}  // namespace taco::zerocache
