#include "zerocache/disk/io_transfer.h"

#include <errno.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "zerocache/disk/file_system.h"

namespace taco::zerocache {

Transfer::Next Transfer::advance(ssize_t result, const std::string& path) {
  if (result == -EINTR) return idle(Next::kCall, path);
  if (result == -EAGAIN) return idle(Next::kPause, path);
  if (result < 0) return fail(static_cast<int>(-result), path);
  if (result == 0 && bytes() > 0 && request_.kind == IoRequest::Kind::kRead) {
    return fail_at_end(progress_, path);
  }
  const std::size_t reached = progress_ + std::min(static_cast<std::size_t>(result), bytes());
  if (reached == request_.bytes) {
    progress_ = reached;
    return Next::kDone;
  }
  const std::size_t blocks = reached / unit_ * unit_;
  if (blocks <= progress_) {
    // Twice the same part of a block: the file ends in it.
    const bool ends = request_.kind == IoRequest::Kind::kRead && reached == partial_;
    partial_ = reached;
    return ends ? fail_at_end(reached, path) : idle(Next::kCall, path);
  }
  progress_ = blocks;
  idle_calls_ = 0;
  return Next::kCall;
}

Transfer::Next Transfer::idle(Next next, const std::string& path) {
  if (++idle_calls_ < kMaxIdleCalls) return next;
  status_ = Status(Code::kResource, describe(path) + ": no progress in " +
                                        std::to_string(kMaxIdleCalls) + " attempts");
  return Next::kDone;
}

Transfer::Next Transfer::fail(int error, const std::string& path) {
  status_ = system_error(error, describe(path));
  return Next::kDone;
}

Transfer::Next Transfer::fail_at_end(std::size_t reached, const std::string& path) {
  status_ = Status(Code::kResource, describe(path) + ": the file ends at byte " +
                                        std::to_string(request_.offset + reached));
  return Next::kDone;
}

std::string Transfer::describe(const std::string& path) const {
  return (request_.kind == IoRequest::Kind::kRead ? "reading " : "writing ") +
         std::to_string(bytes()) + " bytes at " + std::to_string(offset()) + " of " + path;
}

Status carry_out(File& file, const IoRequest& request, std::size_t unit) {
  Transfer transfer(request, unit);
  for (auto next = Transfer::Next::kCall; next != Transfer::Next::kDone;) {
    if (next == Transfer::Next::kPause) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const ssize_t result =
        request.kind == IoRequest::Kind::kRead
            ? file.read_at(transfer.memory(), transfer.bytes(), transfer.offset())
            : file.write_at(transfer.memory(), transfer.bytes(), transfer.offset());
    next = transfer.advance(result, file.path());
  }
  return transfer.status();
}

}  // namespace taco::zerocache
