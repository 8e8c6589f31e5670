// How this rank leaves its group: in order, and not before those who were sent something last have
// looked at it.
//
// A broadcast's root may be done before its receivers have called anything. If they call something
// else, they find out when they come to it, and the root must still be there to hear of it. So a
// rank that leaves asks each receiver of its last messages, unless that rank has sent something
// since, whether it has come to that operation; a receiver that disagrees answers with the failure
// of the group. A receiver that is late is waited for as long as the caller lingers.
//
//   state      event                              then
//   staying    the caller leaves                  draining, and drained if nothing is open
//   draining   nothing is open any more           drained
//   drained    receivers are to be asked          asking, again and again; confirmed if there are
//                                                 none, or the group has failed
//   asking     the last of them has confirmed,    confirmed
//              or the group fails
// Functions that end in _st are the engine's; any thread may wait for the events.
#pragma once

#include <functional>
#include <vector>

#include "base/clock.h"
#include "harp/engine/stack.h"
#include "pg/group/machine_timer.h"

namespace taco::pg {

class Farewell {
 public:
  class Owner {
   public:
    virtual ~Owner() = default;
    virtual void ask_receiver_st(int rank) = 0;
    virtual void wake_st() = 0;  // those who wait for an event
  };
  static constexpr Duration kFirstAsk = kMillisecond;  // then twice as long each time
  static constexpr Duration kLastAsk = 50 * kMillisecond;

  explicit Farewell(Owner& owner) : owner_(owner) {}

  // Followed by idle_st() if nothing is open.
  void begin_st() { leaving_ = true; }
  void idle_st();  // nothing is open
  void ask_st(harp::Transport& transport, std::vector<int> receivers);
  void confirmed_st(int rank);
  bool awaits_st(int rank) const;
  void failed_st();  // the group: there is nothing left to ask
  void stop_st() { timer_.disarm_st(); }

  // Posts `action` to the completion threads as soon as nothing is open.
  void when_idle_st(std::function<void()> action) { when_idle_ = std::move(action); }

  const harp::Event& drained() const { return drained_; }
  const harp::Event& confirmed() const { return confirmed_; }

 private:
  void ask_again_st(Time now);
  void ask_all_st();
  void confirm_st();

  Owner& owner_;
  bool leaving_ = false;
  bool failed_ = false;
  std::function<void()> when_idle_;
  std::vector<int> unconfirmed_;
  Duration interval_ = 0;
  harp::Event drained_, confirmed_;
  MachineTimer<Farewell> timer_{*this, &Farewell::ask_again_st};
};

}  // namespace taco::pg
