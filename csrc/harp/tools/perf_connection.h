// The TCP connection between the two sides of harp-perf: lines of text, by which they say what to
// do, and between two lines whatever bytes a measurement of TCP itself exchanges.
//
// One thread at a time. Every wait ends after some time, or when the other side is gone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "base/status.h"

namespace taco::harp::perf {

// A descriptor with one owner that forked children inherit, unlike those of an engine (OwnFd): a
// server's children go on with what it has accepted.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Socket();

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

class Connection {
 public:
  explicit Connection(Socket fd);

  static Result<Connection> to(const std::string& host, std::uint16_t port);

  Status send_line(const std::string& line);
  // Without its end. Lines are a few KiB at most.
  Result<std::string> receive_line();
  // The line that must come, less its first word; a line "failed ..." is the error of the other
  // side.
  Result<std::string> expect(const std::string& first_word);

  Status send(const void* data, std::size_t bytes);
  // `polls`: asks again and again instead of sleeping, and gives its core away in between.
  Status receive(void* data, std::size_t bytes, bool polls = false);

  std::string other_host() const;  // its address, as text

 private:
  Socket fd_;
};

class Listener {
 public:
  // At every address if `address` is empty; port 0: any free one.
  static Result<Listener> at(const std::string& address, std::uint16_t port);
  Result<Connection> accept();
  std::uint16_t port() const;

 private:
  explicit Listener(Socket fd) : fd_(std::move(fd)) {}
  Socket fd_;
};

}  // namespace taco::harp::perf
