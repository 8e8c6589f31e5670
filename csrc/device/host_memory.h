// The memory of a host that plays the device: frames are anonymous memory, and mapping one moves
// its page-table entries (mremap), so no byte is copied and nothing is faulted in again
// (docs/decisions/0006). Each frame has a place of its own, its home, where it waits while it is
// not mapped. An address without a frame can be neither read nor written, at any moment of a move.
//
// Where the kernel cannot move memory without leaving a hole behind that some other thread's mmap()
// might take (before Linux 5.7, and under some sandboxes), a frame is fresh memory whenever it is
// mapped: correct, and slower by the kernel's zeroing. moves() says which it is.
//
// A forked child has copies of what was mapped, as of any memory of its parent. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/status.h"
#include "device/device.h"

namespace taco::device {

class HostMemory {
 public:
  // Frames that are not mapped, and those that have just been made, are full of this where poison
  // is asked for: not a number in every floating-point format, so that whoever reads what was not
  // filled since ends with NaN.
  static constexpr unsigned char kPoison = 0xFF;

  struct Options {
    std::size_t frame_bytes = std::size_t{4} << 20;  // a power of two, at least the kernel's page
    std::size_t max_frames = 0;
    bool poison = false;
    bool huge_pages = true;  // transparent ones, where frames are large enough and the host allows
    bool may_move = true;    // false: as on a kernel that cannot
  };

  static Result<std::unique_ptr<HostMemory>> create(const Options& options);
  ~HostMemory();
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

  // As in device.h.
  Result<std::byte*> reserve(std::size_t bytes);
  Status release(std::byte* range);
  Result<FrameId> create_frame();
  Status destroy_frame(FrameId frame);
  std::byte* home(FrameId frame) const;
  Status map(std::byte* address, FrameId frame);
  Result<FrameId> unmap(std::byte* address);

  std::size_t frame_bytes() const { return options_.frame_bytes; }
  Usage usage() const;
  bool moves() const { return moves_; }

 private:
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};

  struct Frame {
    bool exists = false;
    std::byte* address = nullptr;  // where it is mapped; null: at home
  };
  struct Range {
    std::size_t bytes = 0;
    std::vector<std::uint32_t> frames;  // by place; kNone where there is none
  };

  HostMemory(const Options& options, std::byte* homes, bool moves)
      : options_(options), homes_(homes), moves_(moves) {}

  std::byte* home_of(std::uint32_t frame) const { return homes_ + frame * options_.frame_bytes; }
  std::size_t existing() const { return frames_.size() - free_.size(); }
  std::uint32_t* slot_of(std::byte* address);
  Status usable(FrameId frame) const;
  Status take_home(std::uint32_t frame, std::byte* address);
  Status populate(std::byte* address, std::uint32_t frame) const;
  std::string named(std::uint32_t frame) const;

  const Options options_;
  std::byte* const homes_;
  const bool moves_;

  mutable std::mutex mutex_;         // guards what follows, and the mappings
  std::vector<Frame> frames_;        // all that ever existed
  std::vector<std::uint32_t> free_;  // numbers that have been given back
  std::size_t mapped_ = 0;
  std::map<std::byte*, Range> ranges_;
};

}  // namespace taco::device
