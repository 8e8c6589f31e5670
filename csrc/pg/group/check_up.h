// A collective that waits for long asks those it waits for what they run. Ranks that disagree so
// that none of their messages ever match (two roots, each waiting for the other) are found out
// here, seconds after the call and not when its time is up. Engine only; one per group.
//
//   state   event                           then
//   off     a collective is watched         on: a look after kFirst
//   on      a look, nothing waits           off
//   on      a look at another than before   on: the next after kFirst
//   on      a look at the same again        on: the next after twice as long, kLongest at most
// An operation that has waited for kFirst by the time of a look asks.
#pragma once

#include <cstdint>
#include <optional>

#include "base/clock.h"
#include "pg/group/machine_timer.h"

namespace taco::pg {

class CheckUp {
 public:
  struct Waiting {
    std::uint64_t sequence = 0;
    Time since = 0;
  };
  class Owner {
   public:
    virtual ~Owner() = default;
    virtual std::optional<Waiting> longest_waiting_st() const = 0;  // of the collectives that run
    virtual void ask_awaited_st(std::uint64_t sequence) = 0;        // those that this one waits for
  };
  static constexpr Duration kFirst = kSecond;
  static constexpr Duration kLongest = 64 * kSecond;

  explicit CheckUp(Owner& owner) : owner_(owner) {}

  void watch_st(harp::Transport& transport) {
    if (interval_ != 0) return;
    interval_ = kFirst;
    timer_.arm_st(transport, transport.now_st() + interval_);
  }
  void stop_st() { timer_.disarm_st(); }

 private:
  void look_st(Time now);

  Owner& owner_;
  Duration interval_ = 0;      // to the next look; 0: off
  std::uint64_t checked_ = 0;  // the sequence number that asked last
  MachineTimer<CheckUp> timer_{*this, &CheckUp::look_st};
};

}  // namespace taco::pg
