// The members that have left the group while their processes live on. What such a member has sent
// still arrives, and what it has received will be acknowledged, within a while; sends and receives
// that are open after that never end. Engine only; one per group.
//
//   state     event               then
//   idle      a member leaves     waiting for two rounds of kRound: an engine that was held up has
//                                 taken a turn in between
//   waiting   a member leaves     waiting for two rounds, from now
//   waiting   both rounds over    idle: nothing more comes of any that has left
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "pg/group/machine_timer.h"
#include "pg/group/notice.h"

namespace taco::pg {

class Departures {
 public:
  class Owner {
   public:
    virtual ~Owner() = default;
    virtual void nothing_more_from_st(int rank) = 0;
  };
  static constexpr Duration kRound = 100 * kMillisecond;

  Departures(Owner& owner, int world) : owner_(owner), told_(world) {}

  // `notice` says how far the member has come.
  void left_st(harp::Transport& transport, int rank, const Notice& notice) {
    told_[rank] = notice;
    rounds_ = 0;
    timer_.arm_st(transport, transport.now_st() + kRound);
  }
  const std::optional<Notice>& told_by(int rank) const { return told_[rank]; }
  void stop_st() { timer_.disarm_st(); }

 private:
  void on_round_over_st(Time now) {
    if (++rounds_ < 2) return timer_.again_st(now + kRound);
    for (std::size_t rank = 0; rank < told_.size(); ++rank)
      if (told_[rank]) owner_.nothing_more_from_st(static_cast<int>(rank));
  }

  Owner& owner_;
  std::vector<std::optional<Notice>> told_;  // by rank
  int rounds_ = 0;
  MachineTimer<Departures> timer_{*this, &Departures::on_round_over_st};
};

}  // namespace taco::pg
