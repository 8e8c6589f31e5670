// One request on its way: what is left of it after each call, and what a result means. The engines
// differ in how they make the call; what follows from its result is decided here.
//
// A request whose calls pass without a byte is given up after so many of them, however they are
// made: with the pauses of carry_out() that takes a second, without them some milliseconds.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/status.h"
#include "zerocache/disk/io_queue.h"

namespace taco::zerocache {

class Transfer {
 public:
  enum class Next : unsigned char {
    kCall,   // call again for what is left
    kPause,  // as well, but the kernel asks for a moment first
    kDone,   // status() says how it ended
  };
  // Calls that may pass without a byte before it is given up.
  static constexpr int kMaxIdleCalls = 1000;

  Transfer() = default;
  // A call may only begin at a multiple of `unit` bytes.
  Transfer(const IoRequest& request, std::size_t unit) : request_(request), unit_(unit) {}

  const IoRequest& request() const { return request_; }
  // The part of the request that is left.
  std::size_t progress() const { return progress_; }
  std::byte* memory() const { return request_.memory + progress_; }
  std::size_t bytes() const { return request_.bytes - progress_; }
  std::uint64_t offset() const { return request_.offset + progress_; }

  // `result`: bytes transferred or a negative errno; `path`: the file's, for messages.
  Next advance(ssize_t result, const std::string& path);
  const Status& status() const { return status_; }

 private:
  Next idle(Next next, const std::string& path);
  Next fail(int error, const std::string& path);
  Next fail_at_end(std::size_t reached, const std::string& path);
  std::string describe(const std::string& path) const;

  IoRequest request_;
  std::size_t unit_ = 1;
  std::size_t progress_ = 0;
  std::size_t partial_ = 0;  // where the last call ended that did not get to the end of a block
  int idle_calls_ = 0;
  Status status_;
};

// Makes the calls of a request on this thread, until it has ended.
Status carry_out(File& file, const IoRequest& request, std::size_t unit);

}  // namespace taco::zerocache
