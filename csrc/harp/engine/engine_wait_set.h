// One place to sleep: an epoll set with a timer and a kick. An engine has two, one for its own
// thread and one for callers that drive it, so that neither consumes an event the other waits for.
//
// kick(): any thread. Everything else: whoever is about to sleep here, or the token's holder while
// nobody does (arm() is also allowed while the sleeper sleeps).
#pragma once

#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

namespace taco::harp {

class WaitSet {
 public:
  static Result<std::unique_ptr<WaitSet>> create();
  ~WaitSet();
  WaitSet(const WaitSet&) = delete;
  WaitSet& operator=(const WaitSet&) = delete;

  // Level-triggered unless `edge`. The set does not own the descriptor.
  Status add(int fd, bool edge = false);
  // Level-triggered; take_event() tells whether it was this one that ended the last block().
  Status add_event(int fd);
  bool take_event() { return std::exchange(event_seen_, false); }
  // Also wake when a descriptor added level-triggered has room to write; or no longer.
  void watch_writable(int fd, bool watch);

  // The next block() returns at `deadline` at the latest. A system call only when it changes.
  void arm(Time deadline);
  // Leaves an earlier deadline in force.
  void arm_no_later(Time deadline) {
    if (deadline < armed_) arm(deadline);
  }

  // Sleeps until a descriptor is readable, the armed time has come, or a kick, which may precede
  // the call.
  void block();
  void kick();

  // Consumes kicks; the sleeper calls it after waking, before it looks for what it was kicked for.
  void consume_kicks();

  // For the fork handler.
  std::vector<int> descriptors() const { return {epoll_fd_, timer_fd_, kick_fd_}; }

 private:
  WaitSet() = default;

  int epoll_fd_ = -1;
  int timer_fd_ = -1;
  int kick_fd_ = -1;
  Time armed_ = kNever;
  int event_fd_ = -1;
  bool event_seen_ = false;
  std::atomic<bool> kicked_{false};
};

}  // namespace taco::harp
