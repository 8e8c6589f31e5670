// EAL's interrupt thread, which stands still except when it is let run for a turn.
//
// When the other end of a memif is gone, that thread unmaps the memory of its rings, also while
// somebody reads or writes there, who dies of it. So nobody does unless the thread stands still,
// and it is let run only while nobody does. It stands in a callback of its own list, for a
// descriptor that is always readable: having been let go it serves whatever else there is, and
// comes back.
//
// One a process, which is never destroyed. Any thread.
#pragma once

#include <atomic>
#include <mutex>
#include <vector>

#include "base/cache_line.h"
#include "base/clock.h"
#include "base/condition.h"
#include "base/status.h"

namespace taco::harp {

class InterruptGate {
 public:
  static Result<InterruptGate*> get();

  // Somebody who uses rings, of one engine of several: what one writes no other does. Owner thread
  // only.
  class alignas(kCacheLine) User {
   public:
    explicit User(InterruptGate& gate);
    ~User();
    User(const User&) = delete;
    User& operator=(const User&) = delete;

    // False: not now. Otherwise the thread stands still until leave(). Either this user sees that
    // it is about to run, or who lets it run sees this user: both write before they look.
    bool enter() {
      is_inside_.store(true, std::memory_order_seq_cst);
      if (gate_.stands_still_.load(std::memory_order_seq_cst)) return true;
      leave();
      return false;
    }
    // The same, and waits for it: when devices are opened or closed.
    bool enter_in_time();
    void leave() { is_inside_.store(false, std::memory_order_release); }
    bool is_inside() const { return is_inside_.load(std::memory_order_seq_cst); }

   private:
    std::atomic<bool> is_inside_{false};
    InterruptGate& gate_;
  };

  // How many want nothing to be said of connections that do not come about.
  struct Silence {
    std::mutex mutex;
    int wanted = 0;  // guarded by mutex
  };
  Silence& silence() { return silence_; }

  // A turn, if the last one was long enough ago: soon again while somebody waits for a connection.
  // None, if a user stays inside.
  void let_run(Time now, bool is_awaited);

 private:
  static constexpr Duration kBetweenTurns = 20 * kMillisecond;
  static constexpr Duration kWhenAwaited = kMillisecond;
  static constexpr Duration kToStandStill = 5 * kSecond;
  static constexpr Duration kToLeave = 50 * kMicrosecond;  // longer than a burst takes

  InterruptGate() = default;
  Status start();
  static void on_interrupt(void* gate);
  void stand_still();
  bool all_have_left() const;

  Silence silence_;
  std::mutex turns_;
  std::vector<const User*> users_;  // guarded by turns_
  Time last_turn_ = 0;              // guarded by turns_
  alignas(kCacheLine) std::atomic<bool> stands_still_{false};
  std::mutex mutex_;
  Condition turn_;
  bool may_run_ = false;  // guarded by mutex_
};

}  // namespace taco::harp
