// Questions that the members of a group ask each other, and what follows from the answers: who is
// late, who disagrees, who can be left.
#include <algorithm>
#include <vector>

#include "pg/execution/signature.h"
#include "pg/group/group.h"
#include "pg/group/timeout_report.h"

namespace taco::pg {

// Number of the question that one asks who leaves.
static constexpr std::uint64_t kClosingQuery = ~std::uint64_t{0};

Notice Group::query_st(std::uint64_t number, std::uint64_t sequence) const {
  Notice query;
  query.kind = NoticeKind::kArrivalQuery;
  query.group = options_.id;
  query.number = number;
  query.sequence = sequence;
  return query;
}

void Group::watch_st(const OperationState& operation) {
  harp::Transport& transport = stack_->engine().transport();
  deadlines_.watch_st(transport, operation.deadline);
  if (!operation.is_point_to_point()) check_up_.watch_st(transport);
}

OperationState* Group::overdue_st(Time now, Time* next) {
  for (OperationState& operation : operations_) {
    if (operation.failing) continue;
    if (operation.deadline <= now) return &operation;
    *next = std::min(*next, operation.deadline);
  }
  return nullptr;
}

void Group::ask_members_st(const OperationState& operation, std::uint64_t number) {
  tell_members_st(query_st(number, operation.is_point_to_point() ? 0 : operation.sequence()));
}

void Group::timed_out_st(const TimeoutReport& report) {
  OperationState& operation = *report.operation;
  const Duration waited = operation.deadline - operation.submitted;
  std::string text = operation.describe() + " of group '" + options_.name + "', " +
                     std::to_string(operation.bytes) + " bytes: Timed out waiting " +
                     std::to_string(waited / kMillisecond) + "ms on " +
                     describe_rank(options_.rank) + ". " +
                     describe_arrivals(report, view_, sequence()) + " In flight here:\n" +
                     describe(open_operations_st());
  fail_at_st(&operation, operation.sequence(), Status(Code::kTimeout, std::move(text)));
}

std::optional<CheckUp::Waiting> Group::longest_waiting_st() const {
  for (const OperationState& operation : operations_) {
    if (operation.execution != nullptr && !operation.failing)
      return CheckUp::Waiting{operation.sequence(), operation.started};
  }
  return std::nullopt;
}

OperationState* Group::collective_st(std::uint64_t sequence) const {
  OperationState* operation = operations_.front();
  while (operation != nullptr &&
         (operation->is_point_to_point() || operation->sequence() != sequence))
    operation = operations_.next(*operation);
  return operation;
}

void Group::ask_awaited_st(std::uint64_t sequence) {
  for (const int rank : collective_st(sequence)->execution->waiting_for())
    tell_st(rank, query_st(0, sequence));
}

void Group::ask_receiver_st(int rank) { tell_st(rank, query_st(kClosingQuery, view_.sent[rank])); }

void Group::answer_query_st(int rank, const Notice& query) {
  if (window_) window_->learn_of_st(rank);
  // A member that still waits has missed the notice, which came before its group was made there.
  if (failed_st_) tell_st(rank, failure_notice());
  Notice answer = answer_to(query);
  answer.sequence = newest_sequence_;
  answer.signature = newest_signature_;
  const auto asked = static_cast<std::uint32_t>(query.sequence);
  const bool started =
      query.sequence != 0 && static_cast<std::int32_t>(newest_sequence_ - asked) >= 0;
  if (started) answer.asked_signature = arrivals_.signature_of(asked).value_or(0);
  // An answer may overtake what was sent before it, and accuses us of not having sent it.
  answer.done = started && has_drained_st(asked) &&
                stack_->engine().transport().is_idle_st(options_.peers[rank]);
  answer.code = failed_st_ ? failure_.code() : Code::kOk;
  tell_st(rank, answer);
}

void Group::report_st(int rank, const Notice& answer) {
  if (answer.number == 0) return check_answer_st(rank, answer);
  if (answer.number == kClosingQuery) return closing_answer_st(rank, answer);
  deadlines_.answered_st(rank, answer);
}

// An answer may come late, after an outage say, when what it is about has ended.
void Group::check_answer_st(int rank, const Notice& answer) {
  const OperationState* operation = collective_st(answer.asked);
  if (operation == nullptr || operation->execution == nullptr || operation->failing) return;
  if (answer.asked_signature != 0 && answer.asked_signature != operation->signature) {
    return conflict_st({static_cast<std::uint32_t>(operation->sequence()), rank, options_.rank,
                        answer.asked_signature, operation->signature});
  }
  // The data may have come too, its completion still queued. A rank that waits on will ask again.
  if (!stack_->engine().transport().is_idle_st(options_.peers[rank])) return;
  const std::vector<int> waiting = operation->execution->waiting_for();
  if (!answer.done || !std::binary_search(waiting.begin(), waiting.end(), rank)) return;
  fail_st(Status(Code::kMismatch, operation->describe() + ": " + describe_rank(rank) +
                                      " has completed it without sending the block that rank " +
                                      std::to_string(options_.rank) + " expects"),
          operation->sequence(), true);
}

// A member that knows the group and disagrees has said so before it answers; one that does not know
// it may have destroyed it already (`done`), or not made it yet.
void Group::closing_answer_st(int rank, const Notice& answer) {
  if (failed_st_ || (!answer.knows_group && !answer.done)) return;
  const std::uint32_t asked = view_.sent[rank];
  const bool has_come =
      static_cast<std::int32_t>(static_cast<std::uint32_t>(answer.sequence) - asked) >= 0;
  if (!has_come && answer.knows_group) return;
  if (has_come) return farewell_.confirmed_st(rank);
  const std::string name = describe_signature(arrivals_.signature_of(asked).value_or(0));
  fail_st(Status(Code::kMismatch, name + " (sequence " + std::to_string(full(asked)) +
                                      "): " + describe_rank(rank) +
                                      " has destroyed the group without having called it"),
          full(asked), true);
}

}  // namespace taco::pg
