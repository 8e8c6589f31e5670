// Carries out what the scheduler decides: gives and takes frames and slots, and starts copies, each
// way of which goes beside the others. Uploads and downloads are streams of the device, reads and
// writes the disk tier's; the ends of all of them come to one place.
//
// One thread at a time, but wake() and address().
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/condition.h"
#include "base/status.h"
#include "device/device.h"
#include "zerocache/disk/disk_tier.h"
#include "zerocache/mover/mover.h"
#include "zerocache/mover/mover_frames.h"
#include "zerocache/schedule/scheduler.h"

namespace taco::zerocache {

// A copy that has ended.
struct Landed {
  Copy copy;
  Status status;
  Time started = 0, ended = 0;
};

class PageCarrier {
 public:
  // `describe` is called by whoever calls the rest.
  static Result<std::unique_ptr<PageCarrier>> open(
      FileSystem& files, const MoverOptions& options, std::size_t page_bytes,
      const std::function<std::string(PageId)>& describe);
  ~PageCarrier();
  PageCarrier(const PageCarrier&) = delete;
  PageCarrier& operator=(const PageCarrier&) = delete;

  // A copy ends by complete(), whatever becomes of it. Fails only where a frame without content
  // (Action::Kind::kTake) is not to be had; dropping what is not there is harmless.
  Status carry_out(const Action& action);
  // Appends what has ended. If that is nothing, waits until something has or somebody wakes it, but
  // no longer than `wait`.
  void complete(Duration wait, std::vector<Landed>* landed);
  void wake();

  std::byte* address(PageId page, Tier tier) const { return frames_->address(page, tier); }
  // Slots of the disk; 0 where there is no disk tier.
  std::uint64_t slots() const { return disk_ == nullptr ? 0 : disk_->slab().slots(); }

 private:
  PageCarrier(std::size_t page_bytes, std::function<std::string(PageId)> describe)
      : page_bytes_(page_bytes), describe_(std::move(describe)) {}
  Status hold(PageId page, Tier tier);
  Status show(PageId page);
  void start(const Copy& copy);
  Status begin(const Copy& copy, Time now);
  void land(const Copy& copy, Status status, Time started);
  void land_from_disk(Duration wait, std::vector<Landed>* landed);

  const std::size_t page_bytes_;
  const std::function<std::string(PageId)> describe_;
  std::unique_ptr<PageFrames> frames_;
  std::vector<Time> started_;  // by page, of what the disk does
  std::vector<DiskTier::Done> done_;

  std::mutex mutex_;  // guards what follows
  Condition wakes_;
  bool woken_ = false;
  bool in_disk_ = false;  // complete() waits for the disk
  std::vector<Landed> landed_;

  // These are destroyed first: their destructors wait for what is under way.
  std::unique_ptr<DiskTier> disk_;
  std::unique_ptr<device::Stream> streams_[2];  // of uploads, of downloads
};

}  // namespace taco::zerocache
