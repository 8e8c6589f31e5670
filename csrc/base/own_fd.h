// A descriptor with one owner: closed with it, and closed in forked children, so that a worker
// process never keeps a dead rank's connection alive. A child's copy of the owner closes nothing:
// by then the number may be that of a file of the child's own.
#pragma once

#include <cstdint>
#include <utility>

#include "base/fork.h"

namespace taco {

class OwnFd {
 public:
  OwnFd() = default;
  explicit OwnFd(int fd) : fd_(fd), generation_(fork_generation()) {
    if (fd_ >= 0) close_on_fork(fd_);
  }
  OwnFd(OwnFd&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)), generation_(other.generation_) {}
  OwnFd& operator=(OwnFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    std::swap(generation_, other.generation_);
    return *this;
  }
  ~OwnFd() { reset(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  void reset() {
    const int fd = std::exchange(fd_, -1);
    if (fd >= 0 && generation_ == fork_generation()) close_now(fd);
  }

 private:
  int fd_ = -1;
  std::uint32_t generation_ = 0;  // that it was opened in
};

}  // namespace taco
