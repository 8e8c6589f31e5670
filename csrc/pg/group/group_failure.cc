// Failures of a group, and how every member comes to know the same reason.
#include <algorithm>
#include <cstdio>
#include <utility>
#include <vector>

#include "base/log.h"
#include "pg/execution/signature.h"
#include "pg/group/group.h"

namespace taco::pg {
Status Group::loss_of(int rank, const PeerLoss& details, const std::string& reason,
                      const std::string& accuser) const {
  std::string text = describe_rank(rank) + " of group '" + options_.name + "' is lost";
  std::string address = details.address;
  if (address.empty() && rank != options_.rank) address = stack_->describe(options_.peers[rank]);
  if (!address.empty()) text += ", at " + address;
  if (details.last_heard_s >= 0) {
    char seconds[48];
    std::snprintf(seconds, sizeof seconds, ", last heard %.3f s before", details.last_heard_s);
    text += seconds;
  }
  text += ": " + reason;
  if (!accuser.empty()) text += " (reported by " + accuser + ")";
  return Status(text, PeerLoss{rank, address, details.last_heard_s});
}

void Group::tell_members_st(const Notice& notice) {
  const std::vector<std::byte> bytes = encode(notice);
  for (int rank = 0; rank < options_.world; ++rank) {
    if (rank != options_.rank && view_.gone[rank].ok())
      stack_->engine().transport().notify_st(options_.peers[rank], bytes);
  }
}

Notice Group::failure_notice() const {
  Notice notice;
  notice.kind = NoticeKind::kGroupFailed;
  notice.group = options_.id;
  notice.code = failure_.code();
  notice.text = failure_.message();
  notice.sequence = failed_from_;
  if (const PeerLoss* loss = failure_.peer_loss(); loss != nullptr && loss->rank >= 0) {
    notice.subject = incarnations_[loss->rank];
    notice.address = loss->address;
    notice.last_heard_s = loss->last_heard_s;
  }
  return notice;
}

void Group::fail_st(const Status& why, std::uint64_t from, bool tell) {
  assert_owner();
  const bool first = !failed_st_;
  if (first && barrier_.is_entered_st()) from = std::min(from, next_sequence_st());
  for (const OperationState& open : operations_)
    if (first && open.is_point_to_point()) from = std::min(from, next_sequence_st());
  if (!first && from >= failed_from_) return;
  failed_st_ = true;
  failed_from_ = from;
  if (first) failure_ = why;
  {
    std::lock_guard lock(mutex_);
    if (first) set_error(why);
    refused_from_ = from;
  }
  TACO_LOG_INFO("pg", "group '%s' rank %d failed from operation %llu on: %s", options_.name.c_str(),
                options_.rank, static_cast<unsigned long long>(from), why.message().c_str());
  if (tell) tell_members_st(failure_notice());
  if (first) {
    barrier_.fail_st(why);
    roll_call_.failed_st();
    farewell_.failed_st();
    if (window_) window_->stop_st(why);
  }
  end_from_st(from, why);
  if (membership_ != nullptr) membership_->fail_children_st(*this);
  tell_others_st(why, from);
  check_drained_st();
}

// Tells a group of another engine, once that comes to it.
struct Group::Word final : harp::Task {
  void run_st(harp::Transport&) override {
    const std::unique_ptr<Word> self(this);
    to->other_failed_st(why, from);
  }
  std::shared_ptr<Group> to;
  Status why;
  std::uint64_t from = 0;
};

void Group::tell_others_st(const Status& why, std::uint64_t from) {
  std::lock_guard lock(mutex_);  // join() waits for what is on its way
  for (const std::weak_ptr<Group>& other : others_) {
    auto word = std::make_unique<Word>();
    word->to = other.lock();
    if (word->to == nullptr) continue;
    word->why = why;
    word->from = from;
    harp::Engine& engine = word->to->stack_->engine();
    engine.submit(*word.release(), false);
  }
}

// The one that has failed answers for it: its members hear of it there, and who destroys it.
void Group::other_failed_st(const Status& why, std::uint64_t from) {
  if (membership_ == nullptr) return;  // it has left
  reported_ = true;
  fail_st(why, from, false);
}

// All ranks have the program's group, and hear of its failure there. What is nested in something
// nested tells its own members: its parent may be closed elsewhere, or not made yet.
void Group::parent_failed_st(const Group& parent) {
  const Parent& of = options_.parent;
  reported_ = true;  // by the parent
  fail_st(parent.failure_, kEverything, of.group != of.root);
}

bool Group::is_ended_by(const OperationState& operation, std::uint64_t from) const {
  return operation.is_point_to_point() || operation.sequence() >= from;
}

void Group::end_from_st(std::uint64_t from, const Status& why) {
  running_.drop_from(from);
  std::vector<std::shared_ptr<OperationState>> open;
  for (OperationState& operation : operations_)
    if (is_ended_by(operation, from)) open.push_back(operation.self);
  for (const auto& operation : open)
    if (operation->self != nullptr) fail_operation_st(*operation, why);
  // The executions left send scratch memory of operations that have completed already.
  std::vector<Execution*> rest;
  for (Execution& e : executions_)
    if (e.operation() == nullptr && !e.failing() && e.sequence() >= from) rest.push_back(&e);
  for (Execution* execution : rest) execution->fail_st(why);
}

void Group::fail_operation_st(OperationState& operation, const Status& why) {
  if (operation.failing) return;
  operation.failing = true;
  const std::string name = operation.describe();
  operation.failure = why.message().starts_with(name) ? why : why.with_prefix(name + ": ");
  if (operation.execution != nullptr) {
    operation.execution->fail_st(why);
  } else if (operation.message != nullptr) {
    point_to_point_.fail_st(operation, operation.failure);
  } else if (operation.one_sided != nullptr) {
    window_->fail_st(operation, operation.failure);
  } else {
    finish_st(operation, operation.failure);
  }
}

// A failure that arose in `operation`, or in what is left of a collective of that sequence number.
void Group::fail_at_st(OperationState* operation, std::uint64_t sequence, const Status& why) {
  const std::shared_ptr<OperationState> keep = operation != nullptr ? operation->self : nullptr;
  const bool point_to_point = keep != nullptr && keep->is_point_to_point();
  fail_st(why, point_to_point ? next_sequence_st() : sequence, true);
  if (keep != nullptr && keep->self != nullptr) fail_operation_st(*keep, why);
}

bool Group::has_left_st(int rank, const Status& why) const {
  if (why.code() != Code::kPeerLost || rank < 0) return false;
  return !view_.gone[rank].ok() || (why.peer_loss() != nullptr && why.peer_loss()->has_left);
}

void Group::broken_st(Execution& execution, int rank, const Status& why) {
  // A member that has left needs no more of a collective that has ended here.
  if (execution.operation() == nullptr && has_left_st(rank, why)) return execution.fail_st(why);
  broken_request_st(execution.operation(), execution.sequence(), rank, why);
}

void Group::message_broken_st(OperationState& operation, int rank, const Status& why) {
  broken_request_st(&operation, operation.sequence(), rank, why);
}

void Group::incoming_broken_st(int rank, const Status& why) {
  if (why.code() == Code::kAborted) {
    return withdrawals_.withdrew_st(
        stack_->engine().transport(), Withdrawals::kNoCollective,
        Status(Code::kAborted, describe_rank(rank) + " gave up a put into the window of '" +
                                   options_.name + "': " + why.message()));
  }
  fail_st(why.with_prefix("window of '" + options_.name + "' on " + describe_rank(options_.rank) +
                          ", written by " + describe_rank(rank) + ": "),
          next_sequence_st(), true);
}

// `operation` is null when only sends of scratch memory are left of it.
void Group::broken_request_st(OperationState* operation, std::uint64_t sequence, int rank,
                              const Status& why) {
  const std::string name = operation != nullptr ? operation->describe() : "a finished operation";
  switch (why.code()) {
    case Code::kPeerLost: {
      const std::shared_ptr<OperationState> keep = operation != nullptr ? operation->self : nullptr;
      const PeerLoss* loss = why.peer_loss();
      if (!has_left_st(rank, why)) membership_->lose_st(options_.peers[rank], why);
      return fail_at_st(keep.get(), sequence,
                        loss_of(rank, loss != nullptr ? *loss : PeerLoss{}, why.message(), ""));
    }
    case Code::kAborted: {
      if (rank < 0) break;
      const bool collective = operation == nullptr || !operation->is_point_to_point();
      // The reason is here already, or under way.
      if (failed_st_ && !collective) return fail_operation_st(*operation, failure_);
      const std::string withdrew =
          window_ ? " has closed its window of '" + options_.name + "': " : " withdrew from it: ";
      const Status unexplained(Code::kAborted,
                               name + ": " + describe_rank(rank) + withdrew + why.message());
      return withdrawals_.withdrew_st(stack_->engine().transport(),
                                      collective ? sequence : Withdrawals::kNoCollective,
                                      unexplained);
    }
    case Code::kMismatch:
      return fail_at_st(
          operation, sequence,
          Status(Code::kMismatch, name + ": " + describe_rank(rank) + ": " + why.message() +
                                      " (here is rank " + std::to_string(options_.rank) + ")"));
    default:
      break;
  }
  fail_at_st(operation, sequence, why.with_prefix(name + ": "));
}

void Group::unexplained_st(const Status& why, std::uint64_t from) {
  if (from != Withdrawals::kNoCollective) return fail_st(why, from, true);
  // A send or receive says nothing about collectives. A reason that came meanwhile has ended it.
  if (!failed_st_) fail_st(why, next_sequence_st(), true);
}

std::uint64_t Group::full(std::uint32_t sequence) const {
  std::lock_guard lock(mutex_);
  return full_sequence(sequence, sequence_);
}

void Group::conflict_st(const Arrivals::Conflict& conflict) {
  const auto side = [&](int rank, std::uint64_t signature, std::uint64_t other) {
    return (rank == options_.rank ? "here " : "") + describe_rank(rank) + ": " +
           describe_beside(signature, other);
  };
  fail_st(Status(Code::kMismatch,
                 "ranks of group '" + options_.name + "' disagree about operation " +
                     std::to_string(full(conflict.sequence)) + ": " +
                     side(conflict.rank_a, conflict.signature_a, conflict.signature_b) + "; " +
                     side(conflict.rank_b, conflict.signature_b, conflict.signature_a)),
          full(conflict.sequence), true);
}

void Group::heard_st(harp::PeerId peer, const harp::MessageKey& key, std::uint64_t signature,
                     bool is_send) {
  const int rank = rank_of(peer);
  if (rank < 0) return;
  if (PointToPoint::is_wire_tag(key.tag)) {
    if (window_) {
      if (is_send) window_->heard_st(rank, stack_->engine().transport());
      return;
    }
    if (is_send) point_to_point_.on_unmatched_st(PointToPoint::user_tag(key.tag));
    return;
  }
  const auto sequence = static_cast<std::uint32_t>(key.tag >> 32);
  view_.arrived[rank] = std::max(view_.arrived[rank], sequence);
  if (failed_st_ && has_failed_at_st(full(sequence))) return;
  if (auto conflict = arrivals_.note(rank, sequence, signature)) return conflict_st(*conflict);
  if (is_send && has_ended_st(sequence) &&
      stack_->engine().transport().has_unmatched_st(peer, key)) {
    fail_st(Status(Code::kMismatch, describe_signature(signature) + " (sequence " +
                                        std::to_string(full(sequence)) +
                                        "): " + describe_rank(rank) + " sent a block to rank " +
                                        std::to_string(options_.rank) + ", which expects none"),
            full(sequence), true);
  }
}

bool Group::has_drained_st(std::uint32_t sequence) const {
  if (!has_ended_st(sequence)) return false;
  for (const Execution& e : executions_)
    if (static_cast<std::uint32_t>(e.sequence()) == sequence) return false;
  return true;
}

// Has this rank run that collective to its end? Then it receives nothing more for it.
bool Group::has_ended_st(std::uint32_t sequence) const {
  if (static_cast<std::int32_t>(newest_sequence_ - sequence) < 0) return false;
  for (const OperationState& operation : operations_) {
    if (operation.is_point_to_point()) continue;
    if (static_cast<std::uint32_t>(operation.sequence()) == sequence) return false;
  }
  return true;
}

void Group::mismatch_st(harp::PeerId peer, const harp::MessageKey& key, std::uint64_t ours,
                        std::uint64_t theirs) {
  const int rank = rank_of(peer);
  if (rank < 0) return;
  if (!PointToPoint::is_wire_tag(key.tag)) {
    return conflict_st(
        {static_cast<std::uint32_t>(key.tag >> 32), options_.rank, rank, ours, theirs});
  }
  fail_st(Status(Code::kMismatch,
                 "send and recv between " + describe_rank(options_.rank) + " and " +
                     describe_rank(rank) + " (tag " +
                     std::to_string(PointToPoint::user_tag(key.tag)) + ") do not match: here " +
                     describe_rank(options_.rank) + " has" + describe_signature(ours).substr(4) +
                     ", " + describe_rank(rank) + " has" + describe_signature(theirs).substr(4)),
          next_sequence_st(), true);
}

// It said goodbye, or was never reached and cannot be (`unreached` says why): no loss to anything
// that does not need it.
void Group::peer_gone_st(harp::PeerId peer, const Status& unreached) {
  const int rank = rank_of(peer);
  if (rank < 0) return;
  view_.gone[rank] =
      Status(unreached.ok() ? "it has left (it destroyed its process group or ended) and "
                              "is still needed here; look in its log for the reason"
                            : unreached.message(),
             PeerLoss{rank, "", -1});
  farewell_.confirmed_st(rank);
  barrier_.peer_gone_st(rank);
  roll_call_.peer_gone_st(rank, view_.gone[rank]);
  break_open_st(rank, 0);
  nothing_more_from_st(rank);
}

// Fails the collectives after that sequence number that wait for a rank that is gone.
void Group::break_open_st(int rank, std::uint64_t after) {
  // An execution that fails takes others with it, which may be gone then: look again from the
  // start.
  const auto needs_it = [&] {
    Execution* e = executions_.front();
    while (e != nullptr && (e->operation() == nullptr || e->failing() || e->sequence() <= after ||
                            !e->has_open_st(rank)))
      e = executions_.next(*e);
    return e;
  };
  while (Execution* execution = needs_it()) broken_st(*execution, rank, view_.gone[rank]);
}

void Group::notice_st(harp::PeerId peer, const Notice& notice) {
  assert_owner();
  const int rank = rank_of(peer);
  if (rank < 0) return roll_call_.stranger_st(peer, notice);
  switch (notice.kind) {
    case NoticeKind::kGroupFailed:
      return failed_elsewhere_st(rank, notice);
    case NoticeKind::kArrivalQuery:
      return answer_query_st(rank, notice);
    case NoticeKind::kArrivalReport:
      return report_st(rank, notice);
    case NoticeKind::kBarrierArrived:
      return barrier_.arrived_st(rank, notice.number);
    case NoticeKind::kBarrierReleased:
      if (rank == 0) barrier_.released_st(notice);
      return;
    case NoticeKind::kGroupLeft:
      return left_st(rank, notice);
    case NoticeKind::kRollCall:
    case NoticeKind::kRollAnswer:
    case NoticeKind::kRollRelease:
    case NoticeKind::kRollRefused:
      return roll_call_.heard_st(rank, notice);
    case NoticeKind::kPeerLost:
      return;  // concerns the process, not one group: Membership has taken it
  }
}

void Group::failed_elsewhere_st(int rank, const Notice& notice) {
  const int victim = notice.subject != 0 ? rank_of_incarnation(notice.subject) : -1;
  if (notice.code == Code::kPeerLost && victim >= 0) {
    return fail_st(Status(notice.text + " (reported by " + describe_rank(rank) + ")",
                          PeerLoss{victim, notice.address, notice.last_heard_s}),
                   notice.sequence, true);
  }
  const Code code = notice.code == Code::kOk ? Code::kAborted : notice.code;
  const std::string teller = describe_rank(rank);
  const std::string prefix = code == Code::kMismatch ? "" : "reported by " + teller + ": ";
  fail_st(Status(code, prefix + notice.text), notice.sequence, true);
}

}  // namespace taco::pg
