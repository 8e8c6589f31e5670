// A thread that waits for descriptors beside the program's calls, and ends when its owner says so.
//
// The thread itself calls await() and read_all(), write_all(); its owner everything else. A copy in
// a forked child has no thread, and is not ended. One that runs at the process's exit() is ended
// then, before what it uses is taken apart.
#pragma once

#include <poll.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <thread>

#include "base/clock.h"
#include "base/own_fd.h"
#include "base/status.h"

namespace harp {

class SideThread {
 public:
  SideThread() = default;
  SideThread(const SideThread&) = delete;
  SideThread& operator=(const SideThread&) = delete;
  ~SideThread() { end(); }

  // `body` returns soon after a call of its has said that it is to end.
  taco::Status start(const char* name, std::function<void()> body);
  // Has the thread end, and waits for it. Idempotent.
  void end();

  // True: something happened at a descriptor, or `deadline` has come. False: the thread is to end.
  bool await(std::span<pollfd> descriptors, taco::Time deadline);
  bool await(int fd, short events, taco::Time deadline);
  // All of it, from or to a socket that does not block. False: not before the deadline, the other
  // side has closed, or the thread is to end.
  bool read_all(int fd, void* data, std::size_t bytes, taco::Time deadline);
  bool write_all(int fd, const void* data, std::size_t bytes, taco::Time deadline);

 private:
  static void end_all();
  void join();

  taco::OwnFd end_;  // readable: the thread is to end
  std::thread thread_;
};

}  // namespace harp
