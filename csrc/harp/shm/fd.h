// A descriptor that belongs to shared memory: closed with its owner, and closed in forked children,
// so that a worker process never keeps a dead rank's connection alive.
#pragma once

#include <utility>

#include "base/fork.h"

namespace taco::harp {

class ShmFd {
 public:
  ShmFd() = default;
  explicit ShmFd(int fd) : fd_(fd) {
    if (fd_ >= 0) close_on_fork(fd_);
  }
  ShmFd(ShmFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  ShmFd& operator=(ShmFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~ShmFd() { reset(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  void reset() {
    if (fd_ >= 0) close_now(std::exchange(fd_, -1));
  }

 private:
  int fd_ = -1;
};

}  // namespace taco::harp
