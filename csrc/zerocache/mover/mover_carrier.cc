#include "zerocache/mover/mover_carrier.h"

#include <chrono>
#include <iterator>
#include <utility>

namespace taco::zerocache {

Result<std::unique_ptr<PageCarrier>> PageCarrier::open(
    FileSystem& files, const MoverOptions& options, std::size_t page_bytes,
    const std::function<std::string(PageId)>& describe) {
  std::unique_ptr<PageCarrier> carrier(new PageCarrier(page_bytes, describe));
  auto frames = PageFrames::create(options, page_bytes);
  if (!frames.ok()) return frames.status();
  carrier->frames_ = std::move(frames).value();
  if (options.device != nullptr) {
    const char* const names[2] = {"taco-upload", "taco-download"};
    for (int way = 0; way < 2; ++way) {
      auto stream = options.device->make_stream(names[way]);
      if (!stream.ok()) return stream.status();
      carrier->streams_[way] = std::move(stream).value();
    }
  }
  if (!options.disk.empty()) {
    DiskTierOptions disk;
    disk.directories = options.disk;
    disk.store = options.store;
    disk.io = options.io;
    disk.io.buffers = carrier->frames_->buffers();
    disk.page_bytes = page_bytes;
    disk.pages = options.max_pages;
    disk.describe = describe;
    auto tier = DiskTier::open(files, disk);
    if (!tier.ok()) return tier.status();
    carrier->disk_ = std::move(tier).value();
    carrier->started_.resize(options.max_pages);
  }
  return carrier;
}

PageCarrier::~PageCarrier() {
  for (auto& stream : streams_) stream.reset();
  disk_.reset();
}

Status PageCarrier::carry_out(const Action& action) {
  const auto [page, from, to] = action.copy;
  switch (action.kind) {
    case Action::Kind::kCopy:
      start(action.copy);
      return {};
    case Action::Kind::kTake:
      return hold(page, to);
    case Action::Kind::kDrop:
      if (from != Tier::kDisk) {
        frames_->release(page, from);
      } else if (disk_ != nullptr) {
        disk_->drop(page);
      }
      return {};
  }
  return {};
}

Status PageCarrier::hold(PageId page, Tier tier) {
  const Status held = frames_->hold(page, tier);
  return held.ok() ? held : held.with_prefix(describe_(page) + ": ");
}

void PageCarrier::start(const Copy& copy) {
  const Time now = monotonic_now();
  const Status begun = begin(copy, now);
  if (!begun.ok()) land(copy, begun, now);
}

Status PageCarrier::begin(const Copy& copy, Time now) {
  const auto [page, from, to] = copy;
  std::byte* target = nullptr;
  if (to == Tier::kDevice) {
    auto unseen = frames_->hold_unseen(page);
    if (!unseen.ok()) return unseen.status().with_prefix(describe_(page) + ": ");
    target = *unseen;
  } else if (to == Tier::kHost) {
    TACO_RETURN_IF_ERROR(hold(page, to));
    target = address(page, to);
  }
  const std::int32_t buffer = frames_->buffer_of(page);
  switch (way_of(from, to)) {
    case Way::kRead:
      started_[page] = now;
      disk_->read(page, target, buffer);
      return {};
    case Way::kWrite:
      started_[page] = now;
      return disk_->write(page, address(page, from), buffer);
    case Way::kUpload:
    case Way::kDownload:
      break;
  }
  device::Stream& stream = *streams_[to == Tier::kDevice ? 0 : 1];
  stream.copy(target, address(page, from), page_bytes_);
  stream.run([this, copy, now] { land(copy, {}, now); });
  return {};
}

// Any thread.
void PageCarrier::land(const Copy& copy, Status status, Time started) {
  const Time now = monotonic_now();
  std::lock_guard lock(mutex_);
  landed_.push_back({copy, std::move(status), started, now});
  wakes_.notify_one();
  if (in_disk_) disk_->wake();
}

void PageCarrier::wake() {
  std::lock_guard lock(mutex_);
  woken_ = true;
  wakes_.notify_one();
  if (in_disk_) disk_->wake();
}

void PageCarrier::complete(Duration wait, std::vector<Landed>* landed) {
  const bool disk = disk_ != nullptr && disk_->open() > 0;
  {
    std::unique_lock lock(mutex_);
    const auto any = [this] { return woken_ || !landed_.empty(); };
    if (any()) wait = 0;
    in_disk_ = disk && wait > 0;
    if (!disk && wait == kNever) {
      wakes_.wait(lock, any);
    } else if (!disk && wait > 0) {
      wakes_.wait_for(lock, std::chrono::nanoseconds(wait), any);
    }
  }
  if (disk) land_from_disk(wait, landed);
  const std::size_t before = landed->size();
  {
    std::lock_guard lock(mutex_);
    in_disk_ = false;
    woken_ = false;
    std::move(landed_.begin(), landed_.end(), std::back_inserter(*landed));
    landed_.clear();
  }
  for (std::size_t i = before; i < landed->size(); ++i) {
    auto& [copy, status, started, ended] = (*landed)[i];
    if (status.ok() && copy.to == Tier::kDevice) status = show(copy.page);
  }
}

Status PageCarrier::show(PageId page) {
  const Status shown = frames_->show(page);
  return shown.ok() ? shown : shown.with_prefix(describe_(page) + ": ");
}

void PageCarrier::land_from_disk(Duration wait, std::vector<Landed>* landed) {
  done_.clear();
  disk_->complete(wait, &done_);
  const Time now = monotonic_now();
  for (DiskTier::Done& done : done_) {
    const bool read = done.kind == IoRequest::Kind::kRead;
    const Copy copy = {done.page, read ? Tier::kDisk : Tier::kHost,
                       read ? Tier::kHost : Tier::kDisk};
    landed->push_back({copy, std::move(done.status), started_[done.page], now});
  }
}

}  // namespace taco::zerocache
