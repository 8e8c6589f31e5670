// Deadlines of operations, and the report that says who has arrived and who has not.
#include <algorithm>
#include <cstdio>
#include <utility>
#include <vector>

#include "base/names.h"
#include "pg/execution/signature.h"
#include "pg/group/group.h"

namespace taco::pg {
namespace {

constexpr Duration kReportWait = 200 * kMillisecond;
constexpr Duration kFirstCheckUp = kSecond;
constexpr Duration kLastCheckUp = 64 * kSecond;

std::string list_of(const std::vector<int>& ranks) {
  std::string text;
  for (const int rank : ranks) append_name(text, std::to_string(rank));
  return ranks.empty() ? "none" : text;
}

}  // namespace

// One timer a group, armed for the earliest deadline; operations that end do not touch it.
void Group::watch_st(const OperationState& operation) {
  harp::Transport& transport = stack_->engine().transport();
  if (operation.deadline < next_deadline_) {
    next_deadline_ = operation.deadline;
    transport.arm_st(deadline_timer_, next_deadline_);
  }
  if (!check_up_armed_ && !operation.is_point_to_point()) {
    check_up_armed_ = true;
    check_up_interval_ = kFirstCheckUp;
    transport.arm_st(check_up_timer_, transport.now_st() + check_up_interval_);
  }
}

void Group::on_deadline(harp::Timer& timer, Time now) {
  Group& self = *static_cast<Group*>(timer.context);
  self.check_deadlines_st(now);
}

void Group::check_deadlines_st(Time now) {
  next_deadline_ = kNever;
  if (report_ != nullptr) return;
  for (OperationState* operation = first_; operation != nullptr; operation = operation->next) {
    if (operation->failing) continue;
    if (operation->deadline <= now) return begin_timeout_st(*operation, now);
    next_deadline_ = std::min(next_deadline_, operation->deadline);
  }
  if (next_deadline_ != kNever)
    stack_->engine().transport().arm_st(deadline_timer_, next_deadline_);
}

void Group::on_check_up(harp::Timer& timer, Time now) {
  Group& self = *static_cast<Group*>(timer.context);
  self.check_up_armed_ = false;
  self.check_up_st(now);
}

// A collective that waits for long asks those it waits for what they run. Ranks that disagree so
// that none of their messages ever meet (two roots, each waiting for the other) are found out here,
// seconds after the call and not when its time is up.
void Group::check_up_st(Time now) {
  harp::Transport& transport = stack_->engine().transport();
  const OperationState* oldest = first_;
  while (oldest != nullptr && (oldest->execution == nullptr || oldest->failing))
    oldest = oldest->next;
  if (oldest == nullptr) return;  // the next operation arms the timer again
  const bool again = oldest->sequence() == checked_ordinal_;
  check_up_interval_ = again ? std::min(2 * check_up_interval_, kLastCheckUp) : kFirstCheckUp;
  if (now - oldest->started >= kFirstCheckUp) {
    checked_ordinal_ = oldest->sequence();
    Notice query;
    query.kind = NoticeKind::kArrivalQuery;
    query.group = options_.id;
    query.ordinal = oldest->sequence();
    for (const int rank : oldest->execution->waiting_for()) tell_st(rank, query);
  }
  check_up_armed_ = true;
  transport.arm_st(check_up_timer_, now + check_up_interval_);
}

// An answer may come late, after an outage say, when what it is about has ended.
void Group::check_answer_st(int rank, const Notice& answer) {
  const OperationState* operation = first_;
  while (operation != nullptr &&
         (operation->is_point_to_point() || operation->sequence() != answer.asked))
    operation = operation->next;
  if (operation == nullptr || operation->execution == nullptr || operation->failing) return;
  if (answer.asked_signature != 0 && answer.asked_signature != operation->signature) {
    return conflict_st({static_cast<std::uint32_t>(operation->sequence()), rank, options_.rank,
                        answer.asked_signature, operation->signature});
  }
  // The data may have come too, its completion still queued. Whoever waits on will ask again.
  if (!stack_->engine().transport().is_settled_st(options_.peers[rank])) return;
  const std::vector<int> waiting = operation->execution->waiting_for();
  if (!answer.done || !std::binary_search(waiting.begin(), waiting.end(), rank)) return;
  fail_st(Status(Code::kMismatch, operation->describe() + ": " + describe_rank(rank) +
                                      " has completed it without sending the block that rank " +
                                      std::to_string(options_.rank) + " expects"),
          operation->sequence(), true);
}

void Group::begin_timeout_st(OperationState& operation, Time now) {
  report_ = std::make_unique<TimeoutReport>();
  report_->operation = operation.self;
  report_->number = ++queries_;
  report_->answered.assign(options_.world, false);
  report_->answers.resize(options_.world);
  report_->expired = now;
  report_->missing = options_.world - 1;
  Notice query;
  query.kind = NoticeKind::kArrivalQuery;
  query.group = options_.id;
  query.number = report_->number;
  query.ordinal = operation.is_point_to_point() ? 0 : operation.sequence();
  tell_members_st(query);
  stack_->engine().transport().arm_st(report_timer_, now + kReportWait);
}

void Group::answer_query_st(int rank, const Notice& query) {
  // Whoever still waits has missed it: told before the group was made there.
  if (failed_st_)
    stack_->engine().transport().notify_st(options_.peers[rank], encode(failure_notice()));
  Notice answer;
  answer.kind = NoticeKind::kArrivalReport;
  answer.group = options_.id;
  answer.number = query.number;
  answer.asked = query.ordinal;
  answer.ordinal = newest_ordinal_;
  answer.signature = newest_signature_;
  const auto asked = static_cast<std::uint32_t>(query.ordinal);
  const bool started =
      query.ordinal != 0 && static_cast<std::int32_t>(newest_ordinal_ - asked) >= 0;
  if (started) answer.asked_signature = arrivals_.signature_of(asked).value_or(0);
  // An answer may overtake what was sent before it, and accuses us of not having sent it.
  harp::Transport& transport = stack_->engine().transport();
  answer.done = started && has_drained_st(asked) && transport.is_settled_st(options_.peers[rank]);
  answer.code = failed_st_ ? failure_.code() : Code::kOk;
  transport.notify_st(options_.peers[rank], encode(answer));
}

void Group::report_st(int rank, const Notice& answer) {
  if (answer.number == 0) return check_answer_st(rank, answer);
  if (answer.number == kClosingQuery) return closing_answer_st(rank, answer);
  if (report_ == nullptr || answer.number != report_->number || report_->answered[rank]) return;
  report_->answered[rank] = true;
  report_->answers[rank] = answer;
  if (--report_->missing == 0) finish_timeout_st();
}

void Group::on_reports_due(harp::Timer& timer, Time) {
  static_cast<Group*>(timer.context)->finish_timeout_st();
}

void Group::finish_timeout_st() {
  if (report_ == nullptr) return;
  const std::shared_ptr<OperationState> timed_out = report_->operation;
  const OperationState& operation = *timed_out;
  const Duration waited = operation.deadline - operation.submitted;
  std::string text = operation.describe() + " of group '" + options_.name + "', " +
                     std::to_string(operation.bytes) + " bytes: Timed out waiting " +
                     std::to_string(waited / kMillisecond) + "ms on " +
                     describe_rank(options_.rank) + ". " + arrival_text(*report_) +
                     " In flight here:\n" + dump_st();
  fail_at_st(timed_out.get(), operation.sequence(), Status(Code::kTimeout, std::move(text)));
  end_timeout_st();
}

// Who has arrived, in one line, and what each of the others is doing.
std::string Group::arrival_text(const TimeoutReport& report) const {
  const OperationState& operation = *report.operation;
  const auto ordinal = static_cast<std::uint32_t>(operation.sequence());
  const bool collective = !operation.is_point_to_point();
  std::vector<int> arrived, absent, silent;
  std::string details;
  for (int rank = 0; rank < options_.world; ++rank) {
    const Notice& answer = report.answers[rank];
    const auto newest = static_cast<std::uint32_t>(answer.ordinal);
    if (rank == options_.rank) {
      arrived.push_back(rank);
      continue;
    }
    if (!report.answered[rank]) {
      silent.push_back(rank);
      if (collective && view_.arrived[rank] >= ordinal) arrived.push_back(rank);
      continue;
    }
    if (!answer.knows_group) {
      absent.push_back(rank);
      details += " Rank " + std::to_string(rank) + " has no such group (any more).";
      continue;
    }
    const bool here = !collective || static_cast<std::int32_t>(newest - ordinal) >= 0;
    (here ? arrived : absent).push_back(rank);
    if (here && (!collective || answer.asked_signature == operation.signature)) continue;
    details += " Rank " + std::to_string(rank);
    if (here && answer.asked_signature != 0) {
      details += " runs " + describe_signature(answer.asked_signature) + " under this sequence.";
    } else if (newest == 0) {
      details += " has started no collective.";
    } else {
      details += " has last started " + describe_signature(answer.signature) + " (sequence " +
                 std::to_string(full(newest)) + ").";
    }
  }
  std::string text;
  if (collective) {
    text = "Arrived: ranks " + list_of(arrived) +
           "; not arrived: " + (absent.empty() ? "" : "ranks ") + list_of(absent) + ".";
  } else {
    text = "The peer has not come to it.";
  }
  if (!silent.empty()) text += " No answer from ranks " + list_of(silent) + ".";
  return text + details;
}

void Group::timed_operation_ended_st(const OperationState& operation) {
  if (report_->operation.get() == &operation) end_timeout_st();
}

void Group::end_timeout_st() {
  if (report_ == nullptr) return;
  harp::Transport& transport = stack_->engine().transport();
  transport.disarm_st(report_timer_);
  report_.reset();
  transport.arm_st(deadline_timer_, transport.now_st());  // others may be late as well
}

}  // namespace taco::pg
