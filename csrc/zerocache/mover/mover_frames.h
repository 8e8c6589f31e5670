// The memory that pages lie in, of both kinds: frames of the device, mapped at the address that a
// page always has there, and frames of host memory, cut from one piece. A frame is made when it is
// first needed, within the caps that whoever asks for them keeps to.
//
// The thread that carries out the mover's actions calls hold() and release(); any thread may ask
// for the address of a page that stays where it is meanwhile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/mapping.h"
#include "base/status.h"
#include "device/device.h"
#include "zerocache/mover/mover.h"
#include "zerocache/pages/page.h"

namespace taco::zerocache {

class PageFrames {
 public:
  // kResource: there is not that much memory.
  static Result<std::unique_ptr<PageFrames>> create(const MoverOptions& options,
                                                    std::size_t page_bytes);
  ~PageFrames();
  PageFrames(const PageFrames&) = delete;
  PageFrames& operator=(const PageFrames&) = delete;

  // A frame for the page in that tier; what it contains is not defined.
  Status hold(PageId page, Tier tier);
  // A frame of the device, and where to fill it: at the page's address nobody can touch it before
  // it is shown there, wherever the device has a place for that.
  Result<std::byte*> hold_unseen(PageId page);
  // Harmless where it has been. Where that fails, the page has no frame.
  Status show(PageId page);
  // Harmless where the page has none.
  void release(PageId page, Tier tier);
  bool held(PageId page, Tier tier) const;
  std::byte* address(PageId page, Tier tier) const;

  // All host frames, and which of them a page has: IoOptions::buffers and IoRequest::buffer.
  std::vector<std::span<std::byte>> buffers() const;
  std::int32_t buffer_of(PageId page) const { return host_frames_[page]; }

 private:
  static constexpr std::int32_t kNoFrame = -1;

  PageFrames(const MoverOptions& options, std::size_t page_bytes, Mapping arena,
             std::size_t frames);
  Result<device::FrameId> take_device_frame();
  Status hold_on_device(PageId page);
  bool is_unseen(PageId page) const;
  void take_from_unseen(PageId page);

  const std::shared_ptr<device::Device> device_;
  std::byte* const range_;
  const std::size_t page_bytes_;
  const bool poison_;
  const Mapping arena_;
  const std::size_t frames_;               // that the arena has room for
  std::vector<std::int32_t> free_host_;    // the last is taken next
  std::vector<std::int32_t> host_frames_;  // by page
  std::vector<device::FrameId> free_device_;
  std::vector<std::uint8_t> on_device_;                     // by page
  std::vector<std::pair<PageId, device::FrameId>> unseen_;  // of these, not mapped yet
};

}  // namespace taco::zerocache
