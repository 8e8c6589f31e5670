// The state that all groups of one Stack share: the observer of what the transport reports unasked,
// the pools of executions and scratch, and the knowledge which processes are lost. It hands
// messages to their group, and the loss of a process to every group that contains it.
//
// One per Stack, made by the first group and detached by the last; on the engine but for attach()
// and detach().
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <unordered_map>
#include <vector>

#include "harp/engine/stack.h"
#include "pg/execution/executor.h"
#include "pg/group/notice.h"

namespace taco::pg {

class Group;

// The time after which a caller stops to wait for an engine to do what a group asks of it.
constexpr Duration kEngineLimit = 5 * kSecond;

class Membership final : public harp::Observer {
 public:
  // Any thread but an engine's, balanced by detach(). Starts to listen when it is the first.
  static std::shared_ptr<Membership> attach(const std::shared_ptr<harp::Stack>& stack);
  static void detach(const std::shared_ptr<Membership>& membership,
                     const std::shared_ptr<harp::Stack>& stack);

  explicit Membership(harp::Stack& stack) : stack_(stack) {}

  // kResource when a group of this id is here already.
  Status add_st(Group& group);
  void remove_st(Group& group);
  // The group takes part in nothing more: the transport need not keep what comes for it.
  void forget_st(const Group& group);

  // Fails the groups that descend from `parent`.
  void fail_children_st(const Group& parent);

  // The process is lost: fails every group that contains it and tells their members, once.
  void lose_st(harp::PeerId peer, const Status& why);

  ExecutionPool& pool() { return pool_; }
  harp::Stack& stack() { return stack_; }

  // harp::Observer
  void on_unmatched_st(harp::PeerId peer, const harp::MessageKey& key, std::uint64_t signature,
                       bool is_send) override;
  void on_mismatch_st(harp::PeerId peer, const harp::MessageKey& key, std::uint64_t ours,
                      std::uint64_t theirs) override;
  void on_peer_lost_st(harp::PeerId peer, const Status& why) override;
  void on_peer_left_st(harp::PeerId peer) override;
  void on_notice_st(harp::PeerId peer, std::span<const std::byte> bytes) override;

 private:
  // A message of a group that is not made here yet.
  struct Early {
    harp::PeerId peer = 0;
    harp::MessageKey key;
    std::uint64_t signature = 0;
  };
  // A notice is kept likewise: members make a group one after the other, and the first may have
  // failed it before the last has come. Of either, the oldest give way: they are most likely of
  // groups that have been destroyed.
  struct EarlyNotice {
    harp::PeerId peer = 0;
    Notice notice;
  };
  static constexpr std::size_t kMaxEarly = 1024;
  static constexpr std::size_t kMaxEarlyNotices = 256;
  // A group that was here: members that leave it later may ask how far it came, and what they still
  // send for it is not early.
  struct Closed {
    std::uint64_t group = 0;
    std::uint32_t sequence = 0;  // of its newest collective
    bool failed = false;
  };
  static constexpr std::size_t kMaxClosed = 1024;

  // A loss: of whom, by whose word, and the transport's own words.
  struct Loss {
    std::uint64_t victim = 0;
    std::uint64_t accuser = 0;
    PeerLoss details;
    std::string reason;
  };
  void spread(const Loss& loss, const harp::PeerId* told_by);
  void note_gone_st(harp::PeerId peer, const Status& unreached);
  void hear_early_st(Group& group);
  void answer_for_unknown_st(harp::PeerId peer, const Notice& query);
  void tell_has_left_st(harp::PeerId peer, const Closed& closed);
  const Closed* find_closed(std::uint64_t group) const;
  std::vector<Group*> groups_containing(std::uint64_t incarnation) const;

  harp::Stack& stack_;
  std::unordered_map<std::uint64_t, Group*> groups_;
  std::map<std::uint64_t, Loss> lost_;  // by incarnation; incarnations never come back
  // Incarnations that said goodbye (ok), or that could not be reached any more (why).
  std::map<std::uint64_t, Status> gone_;
  std::deque<Early> early_;
  std::deque<EarlyNotice> early_notices_;
  std::deque<Closed> closed_;
  ExecutionPool pool_;
  int users_ = 0;  // guarded by the registry's mutex
};

}  // namespace taco::pg
