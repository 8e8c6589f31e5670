// How the members of a group made by handles (edge/roster.h) make sure, before any of them
// goes on, that all have come, each with the same members in the same order. A digest stands for
// the list.
//
// Rank 0 calls every member, a member answers rank 0 when it comes and when it is called, and once
// all have answered rank 0 releases them. Who hears another digest than its own ends the group for
// all of its members with a reason that names both ranks. So does who hears that a member is gone.
// A call from a rank that is no member here is refused, and concerns nobody else: it has an old
// list.
//
//   state      event                                         then
//   apart      this rank enters                              calling (rank 0), answering (others)
//   calling    the last member answers                       complete; releases the others
//   answering  rank 0 releases                               complete
//   any        the group fails, or the time of who waits is  failed
//              up
// Over notices, which may come before the group is made here: Membership keeps them, but not any
// number, which is why a call is answered again. enter() is for any thread; the rest is the
// engine's.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/machine.h"
#include "harp/engine/stack.h"
#include "pg/group/notice.h"

namespace taco::pg {

class Group;

class RollCall {
 public:
  enum class State : std::uint8_t { kApart, kCalling, kAnswering, kComplete, kFailed };

  explicit RollCall(Group& group) : group_(group) {}

  // Once. Returns when all have come (ok), or why the group has failed.
  Status enter(harp::Engine& engine, std::uint64_t digest, Duration timeout);

  void heard_st(int rank, const Notice& notice);  // a call, an answer, a release of a member
  void stranger_st(harp::PeerId peer, const Notice& notice) const;  // of a process that is none
  void peer_gone_st(int rank, const Status& why);
  void failed_st();  // the group has

 private:
  void begin_st(std::uint64_t digest);
  bool is_under_way() const {
    return machine_.is(State::kCalling) || machine_.is(State::kAnswering);
  }
  Notice own_st(NoticeKind kind) const;
  void come_st(int rank);
  void disagree_st(int rank, std::uint64_t their_world);
  void disagree_st(const std::string& how);
  void over_st(State state);
  Status late_st(Duration timeout) const;
  Status interrupted_st(const Status& why) const;

  Group& group_;
  Machine<State> machine_;
  std::uint64_t digest_ = 0;
  std::vector<bool> come_;  // by rank; rank 0 keeps it
  // Heard before this rank has entered.
  std::vector<std::pair<int, Notice>> early_;
  std::vector<std::pair<int, Status>> gone_;
  harp::Event over_;
};

constexpr bool leads_to(RollCall::State from, RollCall::State to) {
  using enum RollCall::State;
  switch (to) {
    case kApart:
      return false;
    case kCalling:
    case kAnswering:
      return from == kApart;
    case kComplete:
      return from == kCalling || from == kAnswering;
    case kFailed:
      return from != kComplete && from != kFailed;
  }
  return false;
}

}  // namespace taco::pg
