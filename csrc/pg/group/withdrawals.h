// Peers that withdrew from messages without saying why: the reason is a notice that is under way.
// If it does not come within kGrace, the withdrawal itself is the reason. Engine only; one per
// group.
//
//   state     event                            then
//   quiet     a peer withdraws                 waiting, until kGrace is over
//   waiting   another withdrawal               waiting; the first one's words count, and the lowest
//                                              of the collectives
//   waiting   kGrace is over                   quiet: the owner hears of it
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "base/clock.h"
#include "base/status.h"
#include "pg/group/machine_timer.h"

namespace taco::pg {

class Withdrawals {
 public:
  static constexpr std::uint64_t kNoCollective = ~std::uint64_t{0};
  static constexpr Duration kGrace = 200 * kMillisecond;

  class Owner {
   public:
    virtual ~Owner() = default;
    // `from`: the lowest collective that a peer withdrew from; kNoCollective: only sends and
    // receives were concerned.
    virtual void unexplained_st(const Status& why, std::uint64_t from) = 0;
  };

  explicit Withdrawals(Owner& owner) : owner_(owner) {}

  void withdrew_st(harp::Transport& transport, std::uint64_t from, const Status& why) {
    from_ = std::min(from_, from);
    if (!why_.ok()) return;
    why_ = why;
    timer_.arm_st(transport, transport.now_st() + kGrace);
  }
  void stop_st() { timer_.disarm_st(); }

 private:
  void on_grace_over_st(Time) {
    const Status why = std::exchange(why_, Status());
    owner_.unexplained_st(why, std::exchange(from_, kNoCollective));
  }

  Owner& owner_;
  Status why_;  // ok: quiet
  std::uint64_t from_ = kNoCollective;
  MachineTimer<Withdrawals> timer_{*this, &Withdrawals::on_grace_over_st};
};

}  // namespace taco::pg
