// The slowest tier: pages written to the slab and read back, several at a time, each verified when
// it is read. It finds slots, numbers the write-backs and keeps their checksums, in memory; which
// page moves when, and when its slot is given up, is its caller's business, and so is the memory
// that pages move from and to.
//
// One thread at a time, but wake(). The file system must outlive it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "zerocache/disk/io_queue.h"
#include "zerocache/disk/slab.h"
#include "zerocache/pages/page.h"

namespace taco::zerocache {

struct DiskTierOptions {
  std::vector<SlabDirectory> directories;
  StoreId store = 0;
  IoOptions io;  // its buffers: the frames that pages move from and to
  std::size_t page_bytes = kPageBytes;
  std::uint32_t pages = 0;
  std::function<std::string(PageId)> describe;  // a page, for messages: Layout::describe()
};

// The generation and checksum of bytes that were written to a slot in full.
struct Version {
  Generation generation = 0;
  std::uint64_t checksum = 0;
};

// The record of a page on disk.
struct DiskPage {
  Slot slot;                  // none: it is not on disk
  Generation generation = 0;  // of the last write-back that was begun
  Version written;            // what the slot holds
  Version former;             // what was written before, to tell a stale page by
};

class DiskTier {
 public:
  // Fails where Slab::create() or open_io_queue() does.
  static Result<std::unique_ptr<DiskTier>> open(FileSystem& files, const DiskTierOptions& options);

  // Writes a page that has no slot to a free one, from `frame`: memory of a page's size, aligned to
  // kIoAlignment, which nobody may write until the page is done. `buffer` as in IoRequest.
  // kResource if there is no free slot, or somebody has removed the file; then the page stays as it
  // was.
  Status write(PageId page, std::byte* frame, std::int32_t buffer = -1);
  // Reads a page that has a slot into `frame`.
  void read(PageId page, std::byte* frame, std::int32_t buffer = -1);
  // Gives its slot up, if it has one. Nothing of the page may be under way.
  void drop(PageId page);

  struct Done {
    PageId page = kNoPage;
    IoRequest::Kind kind = IoRequest::Kind::kRead;
    // After a failed write the slot, which the page keeps until it is dropped, holds nothing of
    // worth; a failed read leaves garbage in the frame, and may be tried again. The message names
    // the page, its tensors and the file.
    Status status;
  };
  // Appends what is done, as IoQueue::complete() does. What was read has been verified: that takes
  // a while, so no more than one page of them comes at a time, and whoever calls begins what it
  // makes room for before the next. Else the disk would stand still meanwhile.
  void complete(Duration wait, std::vector<Done>* done);
  void wake() { queue_->wake(); }  // as IoQueue::wake()
  std::size_t open() const { return queue_->open() + unverified_.size(); }

  const Slab& slab() const { return *slab_; }
  const DiskPage& operator[](PageId page) const { return pages_[page]; }
  std::string_view engine() const { return queue_->engine(); }

 private:
  struct Moving {
    IoRequest::Kind kind;
    std::byte* frame;
    std::uint64_t checksum;  // of what is being written
  };

  explicit DiskTier(const DiskTierOptions& options)
      : store_(options.store),
        page_bytes_(options.page_bytes),
        describe_(options.describe),
        pages_(options.pages),
        moving_(options.pages) {}
  void submit(PageId page, const Moving& moving, std::int32_t buffer);
  void hand_out(PageId page, Status status, std::vector<Done>* done);
  Status verify(PageId page, const std::byte* frame) const;
  std::string whose_bytes(PageId page, std::uint64_t digest) const;

  const StoreId store_;
  const std::size_t page_bytes_;
  const std::function<std::string(PageId)> describe_;
  std::vector<DiskPage> pages_;
  std::vector<Moving> moving_;  // by page
  std::vector<IoCompletion> completions_;
  std::deque<IoCompletion> unverified_;  // reads
  std::unique_ptr<Slab> slab_;
  std::unique_ptr<IoQueue> queue_;  // goes first: it waits for what is under way
};

}  // namespace taco::zerocache
