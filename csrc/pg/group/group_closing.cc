// Leaving a group: in order, and not before those who were sent something last have looked at it.
//
// A broadcast's root may be done before its receivers have called anything. If they call something
// else, they find out when they come to it, and the root must still be there to hear of it. So a
// rank that leaves asks each receiver of its last messages, unless that rank has sent something
// since, whether it has come to that operation; a receiver that disagrees answers with the failure
// of the group. A receiver that is late is waited for as long as the caller lingers.
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "pg/execution/completion_thread.h"
#include "pg/execution/signature.h"
#include "pg/group/engine_call.h"
#include "pg/group/group.h"
#include "pg/group/live_groups.h"

namespace taco::pg {
namespace {

constexpr Duration kEngineLimit = 5 * kSecond;
constexpr Duration kCancelLimit = 2 * kSecond;
constexpr Duration kFirstAsk = kMillisecond;  // then twice as long each time
constexpr Duration kLastAsk = 50 * kMillisecond;
// For what a rank that has left received, to be acknowledged, and for what it sent, to be
// delivered.
constexpr Duration kLeftGrace = 100 * kMillisecond;

}  // namespace

Status Group::close(Duration linger) {
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
    if (std::exchange(left_membership_, true)) return Status();
  }
  live_groups::remove(*this);
  if (getpid() != process_) return Status();  // a forked child: engine and threads are the parent's
  Status unreported;
  if (membership_ != nullptr) unreported = leave(linger);
  completion::remove_user();
  return unreported;
}

void Group::close_when_idle(Duration linger) {
  auto close_now = [self = shared_from_this(), linger] {
    completion::Blocked blocked;  // callbacks that are ready need not stand behind this
    (void)self->close(linger);
  };
  {
    std::lock_guard lock(mutex_);
    if (left_membership_) return;
    closed_ = true;
  }
  if (options_.world == 1 || getpid() != process_) return completion::post(std::move(close_now));
  call_on_engine(
      stack_->engine(),
      [&](harp::Transport&) {
        on_idle_ = std::move(close_now);
        check_drained_st();
      },
      monotonic_now() + kEngineLimit);
}

Status Group::leave(Duration linger) {
  harp::Engine& engine = stack_->engine();
  const auto on_engine = [&](auto function) {
    return call_on_engine(engine, std::move(function), monotonic_now() + kEngineLimit);
  };
  const Time until = monotonic_now() + std::max<Duration>(linger, 0);
  on_engine([this](harp::Transport&) {
    closing_ = true;
    check_drained_st();
  });
  if (engine.wait(drained_, until)) {
    on_engine([this](harp::Transport& transport) { ask_receivers_st(transport.now_st()); });
    (void)engine.wait(confirmed_, until);  // who is later than that hears of it alone
  } else {
    on_engine([this](harp::Transport&) {
      if (!drained_.is_set())
        fail_st(Status(Code::kAborted, "group '" + options_.name + "' was destroyed"), kEverything,
                true);
    });
    if (!engine.wait(drained_, monotonic_now() + kCancelLimit))
      TACO_LOG_ERROR("pg", "group '%s': operations did not end when it was destroyed",
                     options_.name.c_str());
  }
  Status unreported;
  std::shared_ptr<Membership> left;
  on_engine([&](harp::Transport& transport) {
    tell_of_leaving_st();
    membership_->remove_st(*this);
    left = std::exchange(membership_, nullptr);  // here, for an abort() may still come to it
    for (harp::Timer* timer : timers()) transport.disarm_st(*timer);
    barrier_.fail_st(Status(Code::kAborted, "group '" + options_.name + "' was destroyed"));
    if (failed_st_ && !reported_.load()) unreported = failure_;
  });
  if (unreported.code() == Code::kAborted) unreported = Status();
  if (!unreported.ok())
    TACO_LOG_ERROR("pg", "group '%s', known only when it was destroyed: %s", options_.name.c_str(),
                   unreported.message().c_str());
  if (left == nullptr) left = std::exchange(membership_, nullptr);  // the engine has stopped
  Membership::detach(left, stack_);
  return unreported;
}

void Group::check_drained_st() {
  if (first_ != nullptr || executions_ != nullptr) return;
  // Failed altogether: it receives nothing more, and may yet live long before it is closed. After
  // any other failure what peers sent before it can still be received.
  const bool is_over = failed_st_ && failed_from_ == kEverything;
  if (is_over && membership_ != nullptr) membership_->forget_st(*this);  // null: it has left
  if (on_idle_) completion::post(std::exchange(on_idle_, nullptr));
  if (!closing_) return;
  drained_.set();
  stack_->engine().wake_waiters();
}

void Group::ask_receivers_st(Time) {
  for (int rank = 0; rank < options_.world; ++rank) {
    const bool heard_since = static_cast<std::int32_t>(view_.arrived[rank] - view_.sent[rank]) >= 0;
    if (rank == options_.rank || heard_since) continue;
    if (left_[rank]) {
      closing_answer_st(rank, *left_[rank]);
    } else if (view_.gone[rank].ok()) {
      unconfirmed_.push_back(rank);
    }
  }
  ask_interval_ = kFirstAsk;
  on_ask_again(ask_timer_, 0);
}

void Group::on_ask_again(harp::Timer& timer, Time) {
  Group& self = *static_cast<Group*>(timer.context);
  if (self.failed_st_ || self.unconfirmed_.empty()) {
    self.confirmed_.set();
    return self.wake_st();
  }
  Notice query;
  query.kind = NoticeKind::kArrivalQuery;
  query.group = self.options_.id;
  query.number = kClosingQuery;
  for (const int rank : self.unconfirmed_) {
    query.ordinal = self.view_.sent[rank];
    self.tell_st(rank, query);
  }
  harp::Transport& transport = self.stack_->engine().transport();
  transport.arm_st(timer, transport.now_st() + self.ask_interval_);
  self.ask_interval_ = std::min(2 * self.ask_interval_, kLastAsk);
}

// Whoever knows the group and disagrees has told of it before it answers; whoever does not know it
// may have destroyed it already (`done`), or not made it yet.
void Group::closing_answer_st(int rank, const Notice& answer) {
  if (failed_st_ || (!answer.knows_group && !answer.done)) return;
  const std::uint32_t asked = view_.sent[rank];
  const bool has_come =
      static_cast<std::int32_t>(static_cast<std::uint32_t>(answer.ordinal) - asked) >= 0;
  if (!has_come && answer.knows_group) return;
  if (has_come) return confirmed_st(rank);
  const std::string name = describe_signature(arrivals_.signature_of(asked).value_or(0));
  fail_st(Status(Code::kMismatch, name + " (sequence " + std::to_string(full(asked)) +
                                      "): " + describe_rank(rank) +
                                      " has destroyed the group without having called it"),
          full(asked), true);
}

// Those that this rank has had to do with; others, should they ever need it, are told when they
// turn to it (Membership), as the members of children are, which come and go with operations.
// Whoever fails has told that already.
void Group::tell_of_leaving_st() {
  if (failed_st_ || options_.parent.group != 0) return;
  Notice notice;
  notice.kind = NoticeKind::kGroupLeft;
  notice.group = options_.id;
  notice.ordinal = newest_ordinal_;
  for (int rank = 0; rank < options_.world; ++rank) {
    if (rank == options_.rank || !view_.gone[rank].ok()) continue;
    if (view_.arrived[rank] != 0 || view_.sent[rank] != 0 || point_to_point_.has_met_st(rank))
      tell_st(rank, notice);
  }
}

// Its process lives on, and so does the transport to it: what it has sent arrives, and what it has
// received will be acknowledged. But it takes no part in anything later.
void Group::left_st(int rank, const Notice& notice) {
  left_[rank] = notice;
  left_[rank]->knows_group = false;
  left_[rank]->done = true;
  if (view_.gone[rank].ok())
    view_.gone[rank] = Status("it has left the group (it destroyed it) and is still needed here",
                              PeerLoss{rank, "", -1});
  if (std::ranges::count(unconfirmed_, rank) > 0) closing_answer_st(rank, *left_[rank]);
  confirmed_st(rank);
  barrier_.peer_gone_st(rank);
  break_open_st(rank, full(static_cast<std::uint32_t>(notice.ordinal)));
  left_round_ = 0;
  harp::Transport& transport = stack_->engine().transport();
  transport.arm_st(left_timer_, transport.now_st() + kLeftGrace);
}

// Twice, so that an engine that was held up has taken a turn in between: sends and receives that
// are still open then never end.
void Group::on_left_messages_due(harp::Timer& timer, Time now) {
  Group& self = *static_cast<Group*>(timer.context);
  if (++self.left_round_ < 2)
    return self.stack_->engine().transport().arm_st(timer, now + kLeftGrace);
  for (int rank = 0; rank < self.options_.world; ++rank)
    if (self.left_[rank]) self.point_to_point_.peer_gone_st(rank);
}

void Group::confirmed_st(int rank) {
  if (std::erase(unconfirmed_, rank) == 0 || !unconfirmed_.empty()) return;
  confirmed_.set();
  wake_st();
}

}  // namespace taco::pg
