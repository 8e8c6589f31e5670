#include "zerocache/disk_tier.h"

#include <string>
#include <utility>

#include "zerocache/checksum.h"
#include "zerocache/file_system.h"

namespace taco::zerocache {

Result<std::unique_ptr<DiskTier>> DiskTier::open(FileSystem& files, const DiskTierOptions& options,
                                                 const Layout& layout, PageTable& table) {
  std::unique_ptr<DiskTier> tier(new DiskTier(options.store, layout, table));
  auto slab = Slab::create(files, options.directories, options.store, layout.page_bytes());
  if (!slab.ok()) return slab.status();
  tier->slab_ = std::move(slab).value();
  auto queue = open_io_queue(options.io, tier->slab_->files());
  if (!queue.ok()) return queue.status();
  tier->queue_ = std::move(queue).value();
  return tier;
}

Slot DiskTier::find_slot() {
  const Slot free = slab_->take();
  if (free.exists()) return free;
  const PageId victim = table_.spare_slot();
  return victim == kNoPage ? Slot{} : table_.take_slot(victim);
}

Status DiskTier::write(PageId page, std::byte* frame, std::int32_t buffer) {
  const Slot own = table_[page].slot;
  const Slot slot = own.exists() ? own : find_slot();
  if (!slot.exists()) {
    return Status(
        Code::kResource,
        layout_.describe(page) + " finds no room on disk: all " + std::to_string(slab_->slots()) +
            " slots of " + std::to_string(layout_.page_bytes()) +
            " bytes hold pages that are nowhere else; give the cache more disk or memory");
  }
  const Generation generation = table_.begin_write(page, slot);
  const std::span<const std::byte> bytes(frame, layout_.page_bytes());
  const PageIdentity identity = {store_, page, generation};
  submit(page, {IoRequest::Kind::kWrite, frame, checksum(bytes, identity)}, buffer);
  return {};
}

void DiskTier::read(PageId page, std::byte* frame, std::int32_t buffer) {
  table_.begin_read(page);
  submit(page, {IoRequest::Kind::kRead, frame, 0}, buffer);
}

void DiskTier::submit(PageId page, const Moving& moving, std::int32_t buffer) {
  moving_[page] = moving;
  const Slot slot = table_[page].slot;
  IoRequest request;
  request.kind = moving.kind;
  request.file = slot.file;
  request.offset = slab_->place_of(slot);
  request.bytes = static_cast<std::uint32_t>(layout_.page_bytes());
  request.memory = moving.frame;
  request.buffer = buffer;
  request.tag = page;
  queue_->submit(request);
}

void DiskTier::complete(Duration wait, std::vector<Done>* done) {
  completions_.clear();
  queue_->complete(wait, &completions_);
  for (IoCompletion& completion : completions_) {
    const auto page = static_cast<PageId>(completion.tag);
    const Moving& moving = moving_[page];
    Status status = std::move(completion.status);
    if (moving.kind == IoRequest::Kind::kWrite) {
      table_.end_write(page, status.ok(), moving.checksum);
    } else {
      table_.end_read(page);
    }
    if (!status.ok()) {
      status = status.with_prefix(layout_.describe(page) + ": ");
    } else if (moving.kind == IoRequest::Kind::kRead) {
      status = verify(page, moving.frame);
      queue_->keep_busy();  // that took a while
    }
    done->push_back({page, moving.kind, std::move(status)});
  }
}

Status DiskTier::verify(PageId page, const std::byte* frame) const {
  const PageEntry& entry = table_[page];
  const std::uint64_t found = digest({frame, layout_.page_bytes()});
  const PageIdentity identity = {store_, page, entry.written.generation};
  if (bind(found, identity) == entry.written.checksum) return {};
  return Status(Code::kResource,
                layout_.describe(page) + ": " + slab_->files()[entry.slot.file]->path() +
                    " gives other bytes in slot " + std::to_string(entry.slot.index) +
                    " than those written as generation " +
                    std::to_string(entry.written.generation) + ": " + whose_bytes(page, found));
}

std::string DiskTier::whose_bytes(PageId page, std::uint64_t digest) const {
  const Version& former = table_[page].former;
  if (former.generation != 0 &&
      bind(digest, {store_, page, former.generation}) == former.checksum) {
    return "they are stale, of generation " + std::to_string(former.generation);
  }
  for (PageId other = 0; other < table_.size(); ++other) {
    const Version& written = table_[other].written;
    if (other == page || written.generation == 0) continue;
    if (bind(digest, {store_, other, written.generation}) == written.checksum) {
      return "they are those of " + layout_.describe(other);
    }
  }
  return "they are damaged";
}

}  // namespace taco::zerocache
