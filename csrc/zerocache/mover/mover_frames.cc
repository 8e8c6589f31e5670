#include "zerocache/mover/mover_frames.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "base/assert.h"
#include "base/log.h"

namespace taco::zerocache {
namespace {

constexpr int kPoison = 0xFF;  // as HostMemory's
constexpr std::size_t kHugePage = std::size_t{2} << 20;

}  // namespace

Result<std::unique_ptr<PageFrames>> PageFrames::create(const MoverOptions& options,
                                                       std::size_t page_bytes) {
  const std::size_t frames = std::min(options.capacities.host, options.max_pages);
  Mapping arena;
  if (frames > 0) {
    const std::size_t bytes = frames * page_bytes;
    // Not inherited by a forked child, which would make copies of what the parent goes on to write;
    // and what a disk writes into memory that is shared that way may end in the child's.
    auto got = Mapping::anonymous(bytes, MAP_NORESERVE);
    if (!got.ok()) {
      return got.status().with_prefix("no addresses for " + std::to_string(bytes >> 20) +
                                      " MiB of host memory: ");
    }
    arena = std::move(got).value();
    if (page_bytes >= kHugePage) madvise(arena.data(), bytes, MADV_HUGEPAGE);
  }
  return std::unique_ptr<PageFrames>(new PageFrames(options, page_bytes, std::move(arena), frames));
}

PageFrames::PageFrames(const MoverOptions& options, std::size_t page_bytes, Mapping arena,
                       std::size_t frames)
    : device_(options.device),
      range_(options.range),
      page_bytes_(page_bytes),
      poison_(options.poison),
      arena_(std::move(arena)),
      frames_(frames),
      host_frames_(options.max_pages, kNoFrame),
      on_device_(options.max_pages, 0) {
  for (std::size_t i = frames; i > 0; --i) free_host_.push_back(static_cast<std::int32_t>(i - 1));
  if (poison_ && frames_ > 0) std::memset(arena_.data(), kPoison, arena_.size());
}

PageFrames::~PageFrames() {
  for (PageId page = 0; page < on_device_.size(); ++page) {
    if (on_device_[page] != 0) release(page, Tier::kDevice);
  }
  for (const device::FrameId frame : free_device_) {
    const Status destroyed = device_->destroy_frame(frame);
    if (!destroyed.ok()) TACO_LOG_WARNING("zerocache", "%s", destroyed.message().c_str());
  }
}

Status PageFrames::hold(PageId page, Tier tier) {
  TACO_ASSERT(!held(page, tier), "page %u has a frame already", page);
  if (tier == Tier::kDevice) return hold_on_device(page);
  TACO_ASSERT(!free_host_.empty());
  host_frames_[page] = free_host_.back();
  free_host_.pop_back();
  return {};
}

// Which stays among the free ones until it is the page's.
Result<device::FrameId> PageFrames::take_device_frame() {
  if (free_device_.empty()) {
    auto made = device_->create_frame();
    if (!made.ok()) return made.status();
    free_device_.push_back(*made);
  }
  return free_device_.back();
}

Status PageFrames::hold_on_device(PageId page) {
  auto frame = take_device_frame();
  if (!frame.ok()) return frame.status();
  TACO_RETURN_IF_ERROR(device_->map(address(page, Tier::kDevice), *frame));
  free_device_.pop_back();
  on_device_[page] = 1;
  return {};
}

Result<std::byte*> PageFrames::hold_unseen(PageId page) {
  TACO_ASSERT(!held(page, Tier::kDevice), "page %u has a frame already", page);
  auto frame = take_device_frame();
  if (!frame.ok()) return frame.status();
  std::byte* const home = device_->home(*frame);
  if (home == nullptr) {
    TACO_RETURN_IF_ERROR(hold_on_device(page));
    return address(page, Tier::kDevice);
  }
  free_device_.pop_back();
  on_device_[page] = 1;
  unseen_.emplace_back(page, *frame);
  return home;
}

bool PageFrames::is_unseen(PageId page) const {
  return std::any_of(unseen_.begin(), unseen_.end(),
                     [page](const auto& each) { return each.first == page; });
}

// The frame is free, unless it is mapped after this.
void PageFrames::take_from_unseen(PageId page) {
  const auto found = std::find_if(unseen_.begin(), unseen_.end(),
                                  [page](const auto& each) { return each.first == page; });
  free_device_.push_back(found->second);
  unseen_.erase(found);
  on_device_[page] = 0;
}

Status PageFrames::show(PageId page) {
  if (!is_unseen(page)) return {};
  take_from_unseen(page);
  return hold_on_device(page);
}

void PageFrames::release(PageId page, Tier tier) {
  if (!held(page, tier)) return;
  std::byte* const memory = address(page, tier);
  if (tier == Tier::kHost) {
    if (poison_) std::memset(memory, kPoison, page_bytes_);
    free_host_.push_back(host_frames_[page]);
    host_frames_[page] = kNoFrame;
    return;
  }
  if (is_unseen(page)) {
    take_from_unseen(page);
    return;
  }
  on_device_[page] = 0;
  auto frame = device_->unmap(memory);
  if (frame.ok()) {
    free_device_.push_back(*frame);
  } else {
    TACO_LOG_ERROR("zerocache", "%s; the device has a frame less from now on",
                   frame.status().message().c_str());
  }
}

bool PageFrames::held(PageId page, Tier tier) const {
  return tier == Tier::kDevice ? on_device_[page] != 0 : host_frames_[page] != kNoFrame;
}

std::byte* PageFrames::address(PageId page, Tier tier) const {
  if (tier == Tier::kDevice) return range_ + page * page_bytes_;
  return arena_.data() + static_cast<std::size_t>(host_frames_[page]) * page_bytes_;
}

std::vector<std::span<std::byte>> PageFrames::buffers() const {
  std::vector<std::span<std::byte>> buffers;
  for (std::size_t i = 0; i < frames_; ++i) {
    buffers.emplace_back(arena_.data() + i * page_bytes_, page_bytes_);
  }
  return buffers;
}

}  // namespace taco::zerocache
