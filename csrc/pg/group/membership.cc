#include "pg/group/membership.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "base/log.h"
#include "base/per_process.h"
#include "harp/engine/engine_call.h"
#include "pg/group/group.h"

namespace taco::pg {
namespace {

// Which Membership listens to which Stack.
struct Registry {
  std::mutex mutex;
  std::map<harp::Stack*, std::weak_ptr<Membership>> of_stack;
};

constinit PerProcess<Registry> registry;

// Ends remembered; beyond, those of processes in no group here are forgotten.
constexpr std::size_t kMaxEnds = 1024;

}  // namespace

std::shared_ptr<Membership> Membership::attach(const std::shared_ptr<harp::Stack>& stack) {
  std::lock_guard lock(registry().mutex);
  std::shared_ptr<Membership> membership = registry().of_stack[stack.get()].lock();
  if (membership == nullptr) {
    membership = std::make_shared<Membership>(*stack);
    registry().of_stack[stack.get()] = membership;
    // On the engine, since it may be reading the observer at this moment.
    call_on_engine(
        stack->engine(),
        [&](harp::Transport&) {
          stack->set_observer(harp::Service::kCollectives, membership.get());
        },
        monotonic_now() + kEngineLimit);
  }
  ++membership->users_;
  return membership;
}

void Membership::detach(const std::shared_ptr<Membership>& membership,
                        const std::shared_ptr<harp::Stack>& stack) {
  std::lock_guard lock(registry().mutex);
  if (--membership->users_ > 0) return;
  registry().of_stack.erase(stack.get());
  call_on_engine(
      stack->engine(),
      [stack](harp::Transport&) { stack->set_observer(harp::Service::kCollectives, nullptr); },
      monotonic_now() + kEngineLimit);
}

Status Membership::add_st(Group& group) {
  const GroupOptions& options = group.options();
  if (!groups_.emplace(options.id, &group).second) {
    return Status(Code::kResource,
                  "a group of this id is in use already: " + std::to_string(options.id));
  }
  for (int rank = 0; rank < options.world; ++rank) {
    if (rank == options.rank) continue;
    const harp::PeerId peer = options.peers[rank];
    if (auto loss = lost_.find(group.incarnation_of(rank)); loss != lost_.end()) {
      group.fail_st(group.loss_of(rank, loss->second.details, loss->second.reason, ""), 0, true);
    } else if (auto gone = gone_.find(group.incarnation_of(rank)); gone != gone_.end()) {
      group.peer_gone_st(peer, gone->second);
    } else if (const Status why = stack_.engine().transport().loss_st(peer); !why.ok()) {
      on_peer_lost_st(peer, why);
    }
  }
  for (const std::uint64_t ancestor : {options.parent.group, options.parent.root}) {
    const auto found = groups_.find(ancestor);
    if (found != groups_.end() && found->second->has_failed_st())
      group.parent_failed_st(*found->second);
  }
  hear_early_st(group);
  return Status();
}

void Membership::fail_children_st(const Group& parent) {
  const std::uint64_t id = parent.options().id;
  std::vector<Group*> children;
  for (const auto& [other, group] : groups_) {
    const Parent& of = group->options().parent;
    if (other != id && (of.group == id || of.root == id)) children.push_back(group);
  }
  for (Group* child : children) child->parent_failed_st(parent);
}

void Membership::hear_early_st(Group& group) {
  const std::uint64_t id = group.options().id;
  std::deque<Early> other_messages;
  for (const Early& early : std::exchange(early_, {})) {
    if (early.key.group == id) {
      group.heard_st(early.peer, early.key, early.signature, true);
    } else {
      other_messages.push_back(early);
    }
  }
  early_ = std::move(other_messages);
  std::deque<EarlyNotice> other_notices;
  for (EarlyNotice& early : std::exchange(early_notices_, {})) {
    if (early.notice.group == id) {
      group.notice_st(early.peer, early.notice);
    } else {
      other_notices.push_back(std::move(early));
    }
  }
  early_notices_ = std::move(other_notices);
}

void Membership::remove_st(Group& group) {
  auto found = groups_.find(group.options().id);
  if (found == groups_.end() || found->second != &group) return;
  forget_st(group);
  groups_.erase(found);
  if (closed_.size() >= kMaxClosed) closed_.pop_front();
  closed_.push_back({group.options().id, group.newest_sequence_st(), group.has_failed_st()});
}

// Not for one that add_st() has refused: its id is another group's, which is alive.
void Membership::forget_st(const Group& group) {
  const auto found = groups_.find(group.options().id);
  if (found == groups_.end() || found->second != &group) return;
  stack_.engine().transport().forget_group_st(group.options().id);
}

std::vector<Group*> Membership::groups_containing(std::uint64_t incarnation) const {
  std::vector<Group*> found;
  for (const auto& [id, group] : groups_)
    if (group->rank_of_incarnation(incarnation) >= 0) found.push_back(group);
  return found;
}

void Membership::lose_st(harp::PeerId peer, const Status& why) {
  Loss loss;
  loss.victim = stack_.incarnation_of(peer);
  loss.accuser = stack_.incarnation();
  loss.details = why.peer_loss() != nullptr ? *why.peer_loss() : PeerLoss{-1, "", -1};
  if (loss.details.address.empty()) loss.details.address = stack_.describe(peer);
  loss.reason = why.message();
  spread(loss, nullptr);
}

// Everybody in a group with the victim is told once by every process, the victim too. The notices
// go before anything is cancelled, so that no member hears of an abort without its reason.
void Membership::spread(const Loss& loss, const harp::PeerId* told_by) {
  const auto in_no_group = [&](const auto& end) { return groups_containing(end.first).empty(); };
  if (lost_.size() >= kMaxEnds) std::erase_if(lost_, in_no_group);
  if (!lost_.emplace(loss.victim, loss).second) return;
  const std::vector<Group*> groups = groups_containing(loss.victim);
  Notice notice;
  notice.kind = NoticeKind::kPeerLost;
  notice.subject = loss.victim;
  notice.accuser = loss.accuser;
  notice.last_heard_s = loss.details.last_heard_s;
  notice.address = loss.details.address;
  notice.text = loss.reason;
  const std::vector<std::byte> bytes = encode(notice);
  std::set<harp::PeerId> told;
  if (told_by != nullptr) told.insert(*told_by);
  for (Group* group : groups) {
    const GroupOptions& options = group->options();
    for (int rank = 0; rank < options.world; ++rank) {
      if (rank != options.rank && told.insert(options.peers[rank]).second)
        stack_.engine().transport().notify_st(options.peers[rank], bytes);
    }
  }
  for (Group* group : groups) {
    const int accuser = group->rank_of_incarnation(loss.accuser);
    const std::string word = loss.accuser == stack_.incarnation() ? ""
                             : accuser >= 0                       ? group->describe_rank(accuser)
                                                                  : "a process outside this group";
    group->fail_st(
        group->loss_of(group->rank_of_incarnation(loss.victim), loss.details, loss.reason, word), 0,
        false);
  }
}

void Membership::on_unmatched_st(harp::PeerId peer, const harp::MessageKey& key,
                                 std::uint64_t signature, bool is_send) {
  if (auto found = groups_.find(key.group); found != groups_.end()) {
    found->second->heard_st(peer, key, signature, is_send);
  } else if (const Closed* closed = find_closed(key.group)) {
    tell_has_left_st(peer, *closed);
  } else if (is_send) {
    if (early_.size() >= kMaxEarly) early_.pop_front();
    early_.push_back({peer, key, signature});
  }
}

void Membership::on_mismatch_st(harp::PeerId peer, const harp::MessageKey& key, std::uint64_t ours,
                                std::uint64_t theirs) {
  auto found = groups_.find(key.group);
  if (found != groups_.end()) found->second->mismatch_st(peer, key, ours, theirs);
}

void Membership::on_peer_left_st(harp::PeerId peer) { note_gone_st(peer, Status()); }

// A group that needed a process that was never reached has said so before this, and has lost it. To
// all others the process counts as one that left, since it may have: a receive from any source,
// say, asked it too.
void Membership::on_peer_lost_st(harp::PeerId peer, const Status& why) {
  // No group here needs it. One that comes to need it may connect anew, or else asks: add_st().
  if (groups_containing(stack_.incarnation_of(peer)).empty()) return;
  const bool may_have_left = why.peer_loss() != nullptr && why.peer_loss()->may_have_left;
  if (!may_have_left) return lose_st(peer, why);
  if (!lost_.contains(stack_.incarnation_of(peer))) note_gone_st(peer, why);
}

void Membership::note_gone_st(harp::PeerId peer, const Status& unreached) {
  const auto in_no_group = [&](const auto& end) { return groups_containing(end.first).empty(); };
  if (gone_.size() >= kMaxEnds) std::erase_if(gone_, in_no_group);
  gone_.emplace(stack_.incarnation_of(peer), unreached);
  std::vector<Group*> groups;
  bool all_failed = true;
  for (const auto& [id, group] : groups_) {
    if (group->rank_of(peer) < 0) continue;
    groups.push_back(group);
    all_failed = all_failed && group->has_failed_st();
  }
  if (!unreached.ok() && !all_failed) {
    TACO_LOG_WARNING("pg", "%s: %s; the others go on until they need it",
                     stack_.describe(peer).c_str(), unreached.message().c_str());
  }
  for (Group* group : groups) group->peer_gone_st(peer, unreached);
}

void Membership::on_notice_st(harp::PeerId peer, std::span<const std::byte> bytes) {
  const std::optional<Notice> notice = decode(bytes);
  if (!notice) return;  // of a version that says more than we know
  if (notice->kind == NoticeKind::kPeerLost) {
    Loss loss;
    loss.victim = notice->subject;
    loss.accuser = notice->accuser;
    loss.details = {-1, notice->address, notice->last_heard_s};
    loss.reason = notice->text;
    return spread(loss, &peer);
  }
  if (auto found = groups_.find(notice->group); found != groups_.end())
    return found->second->notice_st(peer, *notice);
  if (notice->kind == NoticeKind::kArrivalReport) return;
  if (notice->kind != NoticeKind::kArrivalQuery) {
    // To a roll call its sender waits for an answer, where to a farewell there is none.
    const Closed* const closed = find_closed(notice->group);
    const bool calls =
        notice->kind == NoticeKind::kRollCall || notice->kind == NoticeKind::kRollAnswer;
    if (closed != nullptr && calls) tell_has_left_st(peer, *closed);
    if (closed != nullptr) return;
    if (early_notices_.size() >= kMaxEarlyNotices) early_notices_.pop_front();
    early_notices_.push_back({peer, *notice});
    return;
  }
  answer_for_unknown_st(peer, *notice);
}

const Membership::Closed* Membership::find_closed(std::uint64_t group) const {
  const auto found = std::find_if(closed_.rbegin(), closed_.rend(),
                                  [&](const Closed& one) { return one.group == group; });
  return found == closed_.rend() ? nullptr : &*found;
}

// A member turns to this process for a group that it has left: it cannot know.
void Membership::tell_has_left_st(harp::PeerId peer, const Closed& closed) {
  if (closed.failed) return;  // that was told, with the reason
  Notice notice;
  notice.kind = NoticeKind::kGroupLeft;
  notice.group = closed.group;
  notice.sequence = closed.sequence;
  stack_.engine().transport().notify_st(peer, encode(notice));
}

void Membership::answer_for_unknown_st(harp::PeerId peer, const Notice& query) {
  Notice answer = answer_to(query);
  answer.knows_group = false;
  if (const Closed* closed = find_closed(query.group)) {
    answer.done = true;
    answer.sequence = closed->sequence;
    if (query.number == 0) return tell_has_left_st(peer, *closed);  // a check-up
  }
  stack_.engine().transport().notify_st(peer, encode(answer));
}

}  // namespace taco::pg
