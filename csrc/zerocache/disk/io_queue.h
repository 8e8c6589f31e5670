// Reads and writes of whole pages under way, several at a time: by io_uring (io_queue_uring.cc), or
// by threads that call pread and pwrite (io_queue_threads.cc) where the kernel refuses io_uring.
// Every result is checked. What was transferred in part is continued and what was interrupted is
// tried again, so a completion says that all bytes were transferred, or why not.
//
// A queue belongs to its maker; any thread may call it, one at a time. It must not be used in a
// forked child.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "zerocache/pages/page.h"

namespace taco::zerocache {

class File;

struct IoRequest {
  enum class Kind : unsigned char { kRead, kWrite };
  Kind kind = Kind::kRead;
  std::uint32_t file = 0;    // index among the queue's files
  std::uint64_t offset = 0;  // in that file; a multiple of kIoAlignment, as `bytes` is
  std::uint32_t bytes = 0;
  // Where the bytes are mapped now, aligned to kIoAlignment. From submit() on until the request has
  // been handed out as complete, it must stay mapped, and nobody may write it; nor read it, if it
  // is being read into.
  std::byte* memory = nullptr;
  // Which of IoOptions::buffers this is the beginning of; -1: none. A buffer stays the same memory
  // when it is mapped at another address.
  std::int32_t buffer = -1;
  std::uint64_t tag = 0;  // returned with the completion
};

struct IoCompletion {
  std::uint64_t tag = 0;
  Status status;  // kResource names the file, the place in it and the kernel's reason
};

inline constexpr unsigned kMaxDepth = 4096;

struct IoOptions {
  enum class Engine : unsigned char { kAuto, kUring, kThreads };
  Engine engine = Engine::kAuto;  // kAuto takes io_uring where it is allowed, and says which it is
  unsigned depth = 16;            // requests that are under way at a time; at most kMaxDepth
  std::uint64_t bytes_per_second = 0;  // of reads and writes together; 0: no limit
  // Memory that will be read and written again and again: registered with the kernel, which then
  // need not look its pages up for every request. All of it must be mapped while the queue is made.
  std::vector<std::span<std::byte>> buffers;
  // For tests of the uring engine: what the kernel's result is taken to be.
  std::function<ssize_t(const IoRequest&, ssize_t)> pretend;
};

class IoQueue {
 public:
  // Waits until nothing is under way any more.
  virtual ~IoQueue() = default;
  IoQueue(const IoQueue&) = delete;
  IoQueue& operator=(const IoQueue&) = delete;

  // Never blocks and never fails: errors come as completions. Requests beyond the depth wait here.
  // They may complete in any order, and two that overlap may not be under way at once.
  virtual void submit(const IoRequest& request) = 0;
  // Appends what is complete to `done`. If that is nothing and requests are open, waits until there
  // is something, but no longer than `wait`: 0 only looks, kNever has no limit.
  virtual void complete(Duration wait, std::vector<IoCompletion>* done) = 0;
  // Begins what waits in the place of what has ended, and returns at once: for callers that compute
  // for a while before they call again, so that the disk has work all the same.
  virtual void keep_busy() = 0;
  // Submitted, and not handed out as complete.
  virtual std::size_t open() const = 0;
  // The complete() that waits, or else the next one that would, returns at once, perhaps with
  // nothing. Any thread, at any time.
  virtual void wake() = 0;
  virtual std::string_view engine() const = 0;  // "io_uring" or "threads"

 protected:
  IoQueue() = default;
};

// The files must outlive the queue. kInvalidArgument if the engine asked for is not to be had, or
// `depth` is out of range.
Result<std::unique_ptr<IoQueue>> open_io_queue(const IoOptions& options,
                                               const std::vector<File*>& files);

}  // namespace taco::zerocache
