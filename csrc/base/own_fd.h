// A descriptor with one owner: closed with it, and closed in forked children, so that a worker
// process never keeps a dead rank's connection alive.
#pragma once

#include <utility>

#include "base/fork.h"

namespace taco {

class OwnFd {
 public:
  OwnFd() = default;
  explicit OwnFd(int fd) : fd_(fd) {
    if (fd_ >= 0) close_on_fork(fd_);
  }
  OwnFd(OwnFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  OwnFd& operator=(OwnFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~OwnFd() { reset(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  void reset() {
    if (fd_ >= 0) close_now(std::exchange(fd_, -1));
  }

 private:
  int fd_ = -1;
};

}  // namespace taco
