// One device's memory and the order of work on it, as a table of calls: what moves bytes between
// tiers is written against this, whatever the device is.
//
// Addresses and memory are two things. A range of addresses is reserved once and costs nothing.
// Memory comes in frames of one size, never more of them than the cap allows. A frame can be mapped
// at any frame-aligned address of a range, and mapping moves no bytes. So what lies at an address
// may leave the device and return without anybody's pointer changing, a tensor of any size is
// contiguous, and nothing fragments. An address where no frame is mapped faults when touched: a
// pointer that outlived its bytes never reads those of another.
//
// A Stream carries out what it is given in order, beside its caller and beside other streams; an
// Event orders streams. Device: any thread. Mapping is not ordered with streams: whoever unmaps an
// address has waited for all that was to touch it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "base/status.h"

namespace taco::device {

enum class FrameId : std::uint32_t {};

struct Usage {
  std::size_t frames = 0;      // that exist
  std::size_t mapped = 0;      // of these
  std::size_t max_frames = 0;  // the cap
};

// A point in a stream's work. Made by a device for its own streams, and may be recorded again and
// again: whoever waits means the latest record at the time of the call, and nothing if there was
// none. Any thread.
class Event {
 public:
  virtual ~Event() = default;
  virtual bool done() const = 0;
  virtual void synchronize() const = 0;  // returns once it is done
};

// One thread at a time calls a stream. Its end waits for all that it was given.
class Stream {
 public:
  virtual ~Stream() = default;
  // [dst, dst + bytes) and [src, src + bytes) do not overlap. Either may be this device's memory or
  // the host's; both must stay mapped, and `src` unchanged, until an event recorded afterwards is
  // done.
  virtual void copy(void* dst, const void* src, std::size_t bytes) = 0;
  // Runs `function` on a thread of the host; it may not call this stream.
  virtual void run(std::function<void()> function) = 0;
  virtual void record(Event& event) = 0;
  // Work that is given to this stream from now on begins only when `event` is done.
  virtual void wait(const Event& event) = 0;
  virtual void synchronize() = 0;  // returns once all that it was given is done
};

class Device {
 public:
  virtual ~Device() = default;

  virtual std::size_t frame_bytes() const = 0;
  virtual Usage usage() const = 0;

  // Addresses for `bytes`, rounded up to whole frames; frame-aligned. kResource if there are none.
  virtual Result<std::byte*> reserve(std::size_t bytes) = 0;
  // `range` is what reserve() returned. Frames that are still mapped in it are unmapped, and live.
  virtual Status release(std::byte* range) = 0;

  // kResource if the cap is reached, or the memory behind the cap is not there.
  virtual Result<FrameId> create_frame() = 0;
  virtual Status destroy_frame(FrameId frame) = 0;  // which is not mapped

  // Where the bytes of a frame that is not mapped lie, so that it can be filled before anybody sees
  // it at its address. Null: nowhere, on this device.
  virtual std::byte* home(FrameId frame) = 0;
  // The bytes of a frame that has just been mapped are those that it had at home, and not defined
  // where it has none. kInvalidArgument where the address is not that of a frame in a range, or is
  // taken; or where the frame does not exist, or is mapped elsewhere.
  virtual Status map(std::byte* address, FrameId frame) = 0;
  virtual Result<FrameId> unmap(std::byte* address) = 0;

  // Streams and events may outlive the device. `name`: that of the stream's thread where it has
  // one.
  virtual Result<std::unique_ptr<Stream>> make_stream(const char* name) = 0;
  virtual Result<std::unique_ptr<Event>> make_event() = 0;
};

}  // namespace taco::device
