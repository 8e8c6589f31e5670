// Leaving a group, and what follows here when others leave it. In what order: farewell.h.
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/completion_thread.h"
#include "base/log.h"
#include "harp/engine/engine_call.h"
#include "pg/group/group.h"
#include "pg/group/live_groups.h"

namespace taco::pg {
namespace {

constexpr Duration kCancelLimit = 2 * kSecond;

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
        farewell_.when_idle_st(std::move(close_now));
        check_drained_st();
      },
      monotonic_now() + kEngineLimit);
}

Status Group::destroyed() const {
  return Status(Code::kAborted, "group '" + options_.name + "' was destroyed");
}

Status Group::close_window(const Status& why) {
  if (!window_ || options_.world == 1 || getpid() != process_) return Status();
  if (window_stopped_.is_set()) return Status();
  harp::Engine& engine = stack_->engine();
  const Time until = monotonic_now() + kEngineLimit;
  call_on_engine(
      engine, [&](harp::Transport&) { stop_window_st(why); }, until);
  if (engine.wait(window_stopped_, until)) return Status();
  return Status(Code::kInternal, "the transport's engine does not end what it writes");
}

void Group::stop_window_st(const Status& why) {
  window_->stop_st(why);
  std::vector<std::shared_ptr<OperationState>> waits;
  for (OperationState& operation : operations_)
    if (operation.spec.kind == Kind::kWaitSignal) waits.push_back(operation.self);
  for (const auto& operation : waits)
    if (operation->self != nullptr) fail_operation_st(*operation, why);
}

void Group::window_stopped_st() {
  window_stopped_.set();
  wake_st();
  check_drained_st();
}

void Group::nothing_more_from_st(int rank) {
  point_to_point_.peer_gone_st(rank);
  if (window_) window_->peer_gone_st(rank);
}

Status Group::leave(Duration linger) {
  harp::Engine& engine = stack_->engine();
  const auto on_engine = [&](auto function) {
    return call_on_engine(engine, std::move(function), monotonic_now() + kEngineLimit);
  };
  const Time until = monotonic_now() + std::max<Duration>(linger, 0);
  on_engine([this](harp::Transport&) {
    if (window_) stop_window_st(destroyed());
    farewell_.begin_st();
    check_drained_st();
  });
  const auto comes = [&](const harp::Event& event) {
    const Result<bool> come = wait_and_heed(engine, event, until);
    return come.ok() && come.value();
  };
  if (comes(farewell_.drained())) {
    on_engine([this](harp::Transport& transport) { ask_receivers_st(transport); });
    (void)comes(farewell_.confirmed());  // who is later than that hears of it alone
  } else {
    on_engine([this](harp::Transport&) {
      if (!farewell_.drained().is_set()) {
        fail_st(destroyed(), kEverything, true);
      }
    });
    if (!engine.wait(farewell_.drained(), monotonic_now() + kCancelLimit)) {
      TACO_LOG_ERROR("pg", "group '%s': operations did not end when it was destroyed",
                     options_.name.c_str());
    }
  }
  Status unreported;
  std::shared_ptr<Membership> left;
  on_engine([&](harp::Transport&) {
    tell_of_leaving_st();
    membership_->remove_st(*this);
    left = std::exchange(membership_, nullptr);  // here, for an abort() may still come to it
    deadlines_.stop_st();
    check_up_.stop_st();
    withdrawals_.stop_st();
    departures_.stop_st();
    farewell_.stop_st();
    barrier_.fail_st(destroyed());
    if (failed_st_ && !reported_.load()) unreported = failure_;
  });
  if (unreported.code() == Code::kAborted) unreported = Status();
  if (!unreported.ok()) {
    TACO_LOG_ERROR("pg", "group '%s', known only when it was destroyed: %s", options_.name.c_str(),
                   unreported.message().c_str());
  }
  if (left == nullptr) left = std::exchange(membership_, nullptr);  // the engine has stopped
  Membership::detach(left, stack_);
  return unreported;
}

void Group::check_drained_st() {
  assert_owner();
  if (!operations_.empty() || !executions_.empty()) return;
  if (window_ && window_->is_stopping_st() && !window_->has_stopped_st()) return;
  // Failed altogether: it receives nothing more, and may yet live long before it is closed. After
  // any other failure what peers sent before it can still be received.
  const bool is_over = failed_st_ && failed_from_ == kEverything;
  if (is_over && membership_ != nullptr) membership_->forget_st(*this);  // null: it has left
  farewell_.idle_st();
}

void Group::ask_receivers_st(harp::Transport& transport) {
  std::vector<int> receivers;
  for (int rank = 0; rank < options_.world; ++rank) {
    const bool heard_since = static_cast<std::int32_t>(view_.arrived[rank] - view_.sent[rank]) >= 0;
    if (rank == options_.rank || heard_since) continue;
    if (const auto& told = departures_.told_by(rank)) {
      closing_answer_st(rank, *told);
    } else if (view_.gone[rank].ok()) {
      receivers.push_back(rank);
    }
  }
  farewell_.ask_st(transport, std::move(receivers));
}

// Tells the members that this rank has had to do with; others, should they ever need it, are told
// when they turn to it (Membership), as the members of children are, which come and go with
// operations, unless they may be putting into a window. A group that fails has told that already.
void Group::tell_of_leaving_st() {
  if (failed_st_ || (options_.parent.group != 0 && !window_)) return;
  Notice notice;
  notice.kind = NoticeKind::kGroupLeft;
  notice.group = options_.id;
  notice.sequence = newest_sequence_;
  for (int rank = 0; rank < options_.world; ++rank) {
    if (rank == options_.rank || !view_.gone[rank].ok()) continue;
    if (view_.arrived[rank] != 0 || view_.sent[rank] != 0 ||
        point_to_point_.has_exchanged_st(rank) || (window_ && window_->knows_st(rank)))
      tell_st(rank, notice);
  }
}

// Its process lives on, and so does the transport to it: what it has sent arrives, and what it has
// received will be acknowledged. But it takes no part in anything later.
void Group::left_st(int rank, const Notice& notice) {
  Notice told = notice;
  told.knows_group = false;
  told.done = true;
  departures_.left_st(stack_->engine().transport(), rank, told);
  if (view_.gone[rank].ok()) {
    view_.gone[rank] = Status("it has left the group (it destroyed it) and is still needed here",
                              PeerLoss{rank, "", -1});
  }
  if (farewell_.awaits_st(rank)) closing_answer_st(rank, told);
  farewell_.confirmed_st(rank);
  barrier_.peer_gone_st(rank);
  roll_call_.peer_gone_st(rank, view_.gone[rank]);
  break_open_st(rank, full(static_cast<std::uint32_t>(notice.sequence)));
}

}  // namespace taco::pg
