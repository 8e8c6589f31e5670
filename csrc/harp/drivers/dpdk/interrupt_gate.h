// EAL's interrupt thread, which stands still except when it is let run for a turn.
//
// When the other end of a memif is gone, that thread unmaps the memory of its rings, also while
// somebody reads or writes there, who dies of it. So nobody does unless the thread stands still. It
// stands in a callback of its own list, for a descriptor that is always readable: having been let
// go it serves whatever else there is, and comes back.
//
// One a process, which is never destroyed. Owner thread only, but for get().
#pragma once

#include <atomic>
#include <mutex>

#include "base/clock.h"
#include "base/condition.h"
#include "base/status.h"

namespace taco::harp {

class InterruptGate {
 public:
  static Result<InterruptGate*> get();

  // Then it stays so until the next call of let_run().
  bool stands_still() const { return stands_still_.load(std::memory_order_acquire); }
  // A turn, if the last one was long enough ago: soon again while somebody waits for a connection.
  void let_run(Time now, bool is_awaited);

 private:
  static constexpr Duration kBetweenTurns = 20 * kMillisecond;
  static constexpr Duration kWhenAwaited = kMillisecond;

  InterruptGate() = default;
  Status start();
  static void on_interrupt(void* gate);
  void stand_still();

  Time last_turn_ = 0;
  std::atomic<bool> stands_still_{false};
  std::mutex mutex_;
  Condition turn_;
  bool may_run_ = false;  // guarded by mutex_
};

}  // namespace taco::harp
