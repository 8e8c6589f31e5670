#include "zerocache/disk/disk_tier.h"

#include <string>
#include <utility>

#include "base/assert.h"
#include "zerocache/disk/file_system.h"
#include "zerocache/pages/checksum.h"

namespace taco::zerocache {

Result<std::unique_ptr<DiskTier>> DiskTier::open(FileSystem& files,
                                                 const DiskTierOptions& options) {
  std::unique_ptr<DiskTier> tier(new DiskTier(options));
  auto slab = Slab::create(files, options.directories, options.store, options.page_bytes);
  if (!slab.ok()) return slab.status();
  tier->slab_ = std::move(slab).value();
  auto queue = open_io_queue(options.io, tier->slab_->files());
  if (!queue.ok()) return queue.status();
  tier->queue_ = std::move(queue).value();
  return tier;
}

Status DiskTier::write(PageId page, std::byte* frame, std::int32_t buffer) {
  DiskPage& entry = pages_[page];
  TACO_ASSERT(!entry.slot.exists(), "page %u has a slot already", page);
  entry.slot = slab_->take();
  if (!entry.slot.exists()) {
    return Status(Code::kResource, describe_(page) + " finds no room on disk: all " +
                                       std::to_string(slab_->slots()) + " slots of " +
                                       std::to_string(page_bytes_) +
                                       " bytes are taken; give the cache more disk or memory");
  }
  if (const File& file = *slab_->files()[entry.slot.file]; !file.has_name()) {
    drop(page);
    return Status(Code::kResource, describe_(page) + " is not written: " + file.path() +
                                       " was removed while this cache uses it; close the cache, "
                                       "and load what was saved into another");
  }
  // The next generation, whether this succeeds or not: no two contents ever share a number.
  const PageIdentity identity = {store_, page, ++entry.generation};
  submit(page, {IoRequest::Kind::kWrite, frame, checksum({frame, page_bytes_}, identity)}, buffer);
  return {};
}

void DiskTier::read(PageId page, std::byte* frame, std::int32_t buffer) {
  TACO_ASSERT(pages_[page].slot.exists(), "page %u is read though it has no slot", page);
  submit(page, {IoRequest::Kind::kRead, frame, 0}, buffer);
}

void DiskTier::drop(PageId page) {
  Slot& slot = pages_[page].slot;
  if (slot.exists()) slab_->give_back(slot);
  slot = {};
}

void DiskTier::submit(PageId page, const Moving& moving, std::int32_t buffer) {
  moving_[page] = moving;
  const Slot slot = pages_[page].slot;
  IoRequest request;
  request.kind = moving.kind;
  request.file = slot.file;
  request.offset = slab_->place_of(slot);
  request.bytes = static_cast<std::uint32_t>(page_bytes_);
  request.memory = moving.frame;
  request.buffer = buffer;
  request.tag = page;
  queue_->submit(request);
}

void DiskTier::complete(Duration wait, std::vector<Done>* done) {
  completions_.clear();
  queue_->complete(unverified_.empty() ? wait : 0, &completions_);
  for (IoCompletion& completion : completions_) {
    const auto page = static_cast<PageId>(completion.tag);
    if (moving_[page].kind == IoRequest::Kind::kRead) {
      unverified_.push_back(std::move(completion));
      continue;
    }
    if (completion.status.ok()) {
      DiskPage& entry = pages_[page];
      entry.former = entry.written;
      entry.written = {entry.generation, moving_[page].checksum};
    }
    hand_out(page, std::move(completion.status), done);
  }
  if (unverified_.empty()) return;
  const auto page = static_cast<PageId>(unverified_.front().tag);
  Status status = std::move(unverified_.front().status);
  unverified_.pop_front();
  hand_out(page, status.ok() ? verify(page, moving_[page].frame) : std::move(status), done);
}

void DiskTier::hand_out(PageId page, Status status, std::vector<Done>* done) {
  if (!status.ok()) status = status.with_prefix(describe_(page) + ": ");
  done->push_back({page, moving_[page].kind, std::move(status)});
}

Status DiskTier::verify(PageId page, const std::byte* frame) const {
  const DiskPage& entry = pages_[page];
  const std::uint64_t found = digest({frame, page_bytes_});
  const PageIdentity identity = {store_, page, entry.written.generation};
  if (bind(found, identity) == entry.written.checksum) return {};
  return Status(Code::kResource,
                slab_->files()[entry.slot.file]->path() + " gives other bytes in slot " +
                    std::to_string(entry.slot.index) + " than those written as generation " +
                    std::to_string(entry.written.generation) + ": " + whose_bytes(page, found));
}

std::string DiskTier::whose_bytes(PageId page, std::uint64_t digest) const {
  const Version& former = pages_[page].former;
  if (former.generation != 0 &&
      bind(digest, {store_, page, former.generation}) == former.checksum) {
    return "they are stale, of generation " + std::to_string(former.generation);
  }
  for (PageId other = 0; other < pages_.size(); ++other) {
    const Version& written = pages_[other].written;
    if (other == page || written.generation == 0) continue;
    if (bind(digest, {store_, other, written.generation}) == written.checksum) {
      return "they are those of " + describe_(other);
    }
  }
  return "they are damaged";
}

}  // namespace taco::zerocache
