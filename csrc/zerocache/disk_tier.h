// The slowest tier: pages written to the slab and read back, several at a time, each verified when
// it is read. It finds slots, numbers the write-backs and keeps their checksums in the page table;
// which page moves when is its caller's business, and so is the memory that pages move from and to.
//
// One thread at a time. Layout, page table and file system must outlive it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "zerocache/io_queue.h"
#include "zerocache/layout.h"
#include "zerocache/page.h"
#include "zerocache/page_table.h"
#include "zerocache/slab.h"

namespace taco::zerocache {

struct DiskTierOptions {
  std::vector<SlabDirectory> directories;
  StoreId store = 0;
  IoOptions io;  // its buffers: the frames that pages move from and to
};

class DiskTier {
 public:
  // What Slab::create() and open_io_queue() refuse.
  static Result<std::unique_ptr<DiskTier>> open(FileSystem& files, const DiskTierOptions& options,
                                                const Layout& layout, PageTable& table);

  // Writes a dirty page back from `frame`: memory of a page's size, aligned to kIoAlignment, which
  // nobody may write until the page is done. `buffer` as in IoRequest. kResource if every slot
  // holds a page that is nowhere else; then the page stays as it was.
  Status write(PageId page, std::byte* frame, std::int32_t buffer = -1);
  // Reads a clean page into `frame`.
  void read(PageId page, std::byte* frame, std::int32_t buffer = -1);

  struct Done {
    PageId page = kNoPage;
    IoRequest::Kind kind = IoRequest::Kind::kRead;
    // A failed write leaves the page dirty; a failed read leaves garbage in the frame. Either may
    // be tried again. The message names the page, its tensors and the file.
    Status status;
  };
  // Appends what is done, as IoQueue::complete() does. A page that was written is clean and still
  // in memory; one that was read has been verified, and is where it was until the caller says so
  // (PageTable::set_in_memory()).
  void complete(Duration wait, std::vector<Done>* done);
  std::size_t open() const { return queue_->open(); }

  const Slab& slab() const { return *slab_; }
  std::string_view engine() const { return queue_->engine(); }

 private:
  struct Moving {
    IoRequest::Kind kind;
    std::byte* frame;
    std::uint64_t checksum;  // of what is being written
  };

  DiskTier(StoreId store, const Layout& layout, PageTable& table)
      : store_(store), layout_(layout), table_(table), moving_(layout.pages()) {}
  Slot find_slot();
  void submit(PageId page, const Moving& moving, std::int32_t buffer);
  Status verify(PageId page, const std::byte* frame) const;
  std::string whose_bytes(PageId page, std::uint64_t digest) const;

  const StoreId store_;
  const Layout& layout_;
  PageTable& table_;
  std::vector<Moving> moving_;  // by page
  std::vector<IoCompletion> completions_;
  std::unique_ptr<Slab> slab_;
  std::unique_ptr<IoQueue> queue_;  // goes first: it waits for what is under way
};

}  // namespace taco::zerocache
