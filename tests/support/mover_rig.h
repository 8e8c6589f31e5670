// A mover over real tiers with small pages: a device that is the host, with poison, and slabs in
// directories of its own. Test support.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "device/host_device.h"
#include "support/temporary_directory.h"
#include "zerocache/disk/disk_format.h"
#include "zerocache/mover/mover.h"

namespace taco::testing {

inline zerocache::Access read_in(zerocache::PageId page,
                                 zerocache::Tier tier = zerocache::Tier::kDevice) {
  return {page, tier, true, false, false};
}
inline zerocache::Access write_in(zerocache::PageId page,
                                  zerocache::Tier tier = zerocache::Tier::kDevice,
                                  bool reads = true) {
  return {page, tier, reads, true, false};
}

// A host device that has memory for so many frames and no more, whatever its cap.
class ScarceDevice : public device::Device {
 public:
  ScarceDevice(std::unique_ptr<Device> device, const std::atomic<std::size_t>& frames)
      : device_(std::move(device)), frames_(frames) {}
  std::size_t frame_bytes() const override { return device_->frame_bytes(); }
  device::Usage usage() const override { return device_->usage(); }
  Result<std::byte*> reserve(std::size_t bytes) override { return device_->reserve(bytes); }
  Status release(std::byte* range) override { return device_->release(range); }
  Result<device::FrameId> create_frame() override {
    if (usage().frames >= frames_) return Status(Code::kResource, "out of frames");
    return device_->create_frame();
  }
  Status destroy_frame(device::FrameId frame) override { return device_->destroy_frame(frame); }
  std::byte* home(device::FrameId frame) override { return device_->home(frame); }
  Status map(std::byte* address, device::FrameId frame) override {
    return device_->map(address, frame);
  }
  Result<device::FrameId> unmap(std::byte* address) override { return device_->unmap(address); }
  Result<std::unique_ptr<device::Stream>> make_stream(const char* name) override {
    return device_->make_stream(name);
  }
  Result<std::unique_ptr<device::Event>> make_event() override { return device_->make_event(); }

 private:
  const std::unique_ptr<Device> device_;
  const std::atomic<std::size_t>& frames_;
};

struct MoverSizes {
  std::uint32_t pages = 8, device = 4, host = 4, disk = 0;
  std::size_t page_bytes = 4096;
  int directories = 1;
  zerocache::IoOptions::Engine engine = zerocache::IoOptions::Engine::kAuto;
  std::function<void()> before_each;  // of the streams: host_stream.h
  bool scarce = false;                // a ScarceDevice
  std::uint32_t at_first = ~0u;       // pages that the layout has
};

class MoverRig {
 public:
  using PageId = zerocache::PageId;
  using Tier = zerocache::Tier;

  explicit MoverRig(const MoverSizes& sizes,
                    zerocache::FileSystem& files = zerocache::FileSystem::real())
      : sizes_(sizes), layout_(make_layout(sizes)) {
    set_log_level(LogLevel::kWarning);
    zerocache::MoverOptions options;
    if (sizes.device > 0) {
      device::HostOptions host;
      host.memory.frame_bytes = sizes.page_bytes;
      host.memory.max_frames = sizes.device;
      host.memory.poison = true;
      host.before_each = sizes.before_each;
      auto made = std::move(device::make_host_device(host)).value();
      if (sizes.scarce) made = std::make_unique<ScarceDevice>(std::move(made), device_frames_);
      options.device = std::move(made);
      options.range = std::move(options.device->reserve(sizes.pages * sizes.page_bytes)).value();
      device = options.device;
    }
    options.capacities = {sizes.device, sizes.host, 0};
    options.max_pages = sizes.pages;
    options.io.engine = sizes.engine;
    options.store = 0x5108e;
    options.poison = true;
    if (sizes.disk > 0) {
      const auto each = sizes.disk / static_cast<std::uint32_t>(sizes.directories);
      for (int i = 0; i < sizes.directories; ++i) {
        directories_.push_back(std::make_unique<TemporaryDirectory>());
        options.disk.push_back(
            {directories_.back()->path(), zerocache::page_place(each, sizes.page_bytes)});
      }
    }
    auto opened = zerocache::Mover::open(files, options, layout_);
    EXPECT_TRUE(opened.ok()) << opened.status().message();
    mover = std::move(opened).value();
  }

  ::testing::AssertionResult begin(zerocache::OperatorKey key,
                                   const std::vector<zerocache::Access>& accesses) {
    const Status status = mover->begin(key, accesses);
    if (status.ok()) return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure() << status.message();
  }
  // Writes the page whole, by a use of its own.
  void fill(PageId page, std::uint32_t value, Tier tier = Tier::kHost) {
    const std::vector<zerocache::Access> use = {write_in(page, tier, false)};
    ASSERT_TRUE(begin(kFill, use));
    write(page, tier, value);
    mover->end(kFill);
  }
  void write(PageId page, Tier tier, std::uint32_t value) {
    auto* const words = reinterpret_cast<std::uint32_t*>(mover->address(page, tier));
    for (std::size_t i = 0; i < sizes_.page_bytes / 4; ++i) words[i] = word(value, i);
  }
  bool holds(PageId page, Tier tier, std::uint32_t value) const {
    const auto* const words = reinterpret_cast<std::uint32_t*>(mover->address(page, tier));
    for (std::size_t i = 0; i < sizes_.page_bytes / 4; ++i) {
      if (words[i] != word(value, i)) return false;
    }
    return true;
  }
  const std::string& directory(std::size_t i = 0) const { return directories_[i]->path(); }
  std::atomic<std::size_t>& device_frames() { return device_frames_; }
  zerocache::Layout& layout() { return layout_; }

 private:
  static constexpr zerocache::OperatorKey kFill = 0xF1110000;
  static std::uint32_t word(std::uint32_t value, std::size_t at) {
    return value * 2654435761u + static_cast<std::uint32_t>(at);
  }
  static zerocache::Layout make_layout(const MoverSizes& sizes) {
    std::vector<zerocache::TensorSpec> tensors;
    for (PageId page = 0; page < std::min(sizes.pages, sizes.at_first); ++page) {
      zerocache::TensorSpec tensor;
      tensor.name = "layer" + std::to_string(page);
      tensor.bytes = sizes.page_bytes;
      tensors.push_back(tensor);
    }
    return std::move(zerocache::Layout::make(tensors, sizes.page_bytes)).value();
  }

  const MoverSizes sizes_;
  std::atomic<std::size_t> device_frames_{SIZE_MAX};
  std::vector<std::unique_ptr<TemporaryDirectory>> directories_;
  zerocache::Layout layout_;

 public:
  std::shared_ptr<device::Device> device;
  std::unique_ptr<zerocache::Mover> mover;  // goes first
};

}  // namespace taco::testing
