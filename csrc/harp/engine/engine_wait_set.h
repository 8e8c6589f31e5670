// One place to sleep: an epoll set. An engine has two, one for its own thread and one for callers
// that drive it, so that neither consumes an event the other waits for. They share what kicks a
// sleeper, and the engine's thread has an alarm, which others may set while it sleeps: descriptors
// are few where many ranks share a host.
//
// kick(): any thread. Everything else: whoever is about to sleep here, or the token's holder while
// nobody does (Alarm::set() is also allowed while the sleeper sleeps).
#pragma once

#include <atomic>
#include <memory>
#include <utility>

#include "base/clock.h"
#include "base/own_fd.h"
#include "base/status.h"

namespace taco::harp {

class WaitSet {
 public:
  // `bell`: an eventfd that nobody reads, so that every write to it wakes all who sleep on it. The
  // set does not own it.
  static Result<std::unique_ptr<WaitSet>> create(int bell);

  // Level-triggered. The set does not own the descriptor.
  Status add(int fd);
  // The same; take_event() tells whether it was this one that ended the last block().
  Status add_event(int fd);
  bool take_event() { return std::exchange(event_seen_, false); }
  // Also wake when a descriptor has room to write; or no longer.
  void watch_writable(int fd, bool watch);

  // Sleeps until a descriptor is readable, `deadline`, or a kick, which may precede the call; or
  // for no reason.
  void block(Time deadline);
  void kick();

  // The sleeper calls it after waking, before it looks for what it was kicked for.
  void consume_kicks() {
    if (kicked_.load(std::memory_order_relaxed)) kicked_.exchange(false);
  }

 private:
  explicit WaitSet(int bell) : bell_(bell) {}

  const int bell_;
  OwnFd epoll_;
  int event_fd_ = -1;
  bool event_seen_ = false;
  std::atomic<bool> kicked_{false};
};

// A time at which whoever sleeps on its descriptor wakes.
class Alarm {
 public:
  Status start();
  int fd() const { return timer_.get(); }
  // kNever: at none. A system call only when it changes.
  void set(Time when);
  // Leaves an earlier time in force.
  void set_no_later(Time when) {
    if (when < set_) set(when);
  }

 private:
  OwnFd timer_;
  Time set_ = kNever;
};

}  // namespace taco::harp
