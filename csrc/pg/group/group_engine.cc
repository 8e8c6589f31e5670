// The engine's side of a group: operations from submission to completion.
#include <algorithm>
#include <utility>

#include "pg/execution/staging.h"
#include "pg/execution/trace.h"
#include "pg/execution/whole_call.h"
#include "pg/group/group.h"

namespace taco::pg {

void Group::take_st(OperationState& operation, harp::Transport& transport) {
  assert_owner();
  operations_.push_back(operation);
  operation.started = transport.now_st();
  if (operation.is_point_to_point()) {
    operation.set_algorithm("direct");
    // Messages that a peer has sent before the failure are still received.
    const bool may_be_here = failed_from_ > kEverything && !is_one_sided(operation.spec.kind);
    if (failed_st_ && !(may_be_here && point_to_point_.is_here_st(operation, transport)))
      return fail_at_st(&operation, next_sequence_st(), failure_);
    if (window_ && window_->is_stopping_st()) {
      return finish_st(operation,
                       Status(Code::kAborted, operation.describe() + ": the window of '" +
                                                  options_.name + "' was closed"));
    }
    watch_st(operation);
    return is_one_sided(operation.spec.kind) ? window_->start_st(operation, transport)
                                             : point_to_point_.start_st(operation, transport);
  }
  if (has_failed_at_st(operation.sequence()))
    return finish_st(operation, failure_.with_prefix(operation.describe() + ": "));
  watch_st(operation);
  const auto sequence = static_cast<std::uint32_t>(operation.sequence());
  newest_sequence_ = sequence;
  newest_signature_ = operation.signature;
  if (auto conflict = arrivals_.note(options_.rank, sequence, operation.signature))
    return conflict_st(*conflict);
  if (!running_.queue(operation)) run_st(operation);
}

Problem Group::problem_of(const OperationSpec& spec, bool in_place) {
  Problem problem;
  problem.kind = spec.kind;
  problem.element_bytes = static_cast<std::uint32_t>(kernels::size_of(spec.dtype));
  problem.in_place = in_place;
  problem.codec = spec.codec;
  const auto blocks_of = [&](const std::vector<Piece>& pieces) {
    problem.bytes = pieces[0].bytes;
    const bool even = std::all_of(pieces.begin(), pieces.end(),
                                  [&](const Piece& p) { return p.bytes == problem.bytes; });
    if (even) return;
    problem.bytes = 0;
    for (const Piece& piece : pieces) problem.blocks.push_back(piece.bytes);
  };
  switch (spec.kind) {
    case Kind::kAllReduce:
    case Kind::kReduce:
      problem.bytes = spec.inputs[0].bytes;
      break;
    case Kind::kGather:
      problem.bytes = spec.inputs[0].bytes;
      break;
    case Kind::kBroadcast:
    case Kind::kScatter:
      problem.bytes = spec.outputs[0].bytes;
      break;
    case Kind::kAllGather:
      blocks_of(spec.outputs);
      break;
    case Kind::kReduceScatter:
      blocks_of(spec.inputs);
      break;
    case Kind::kAllToAll:
      problem.equal_splits = spec.equal_splits;
      if (spec.equal_splits) {
        problem.bytes = spec.inputs[0].bytes;
        break;
      }
      for (const Piece& piece : spec.inputs) problem.send_blocks.push_back(piece.bytes);
      for (const Piece& piece : spec.outputs) problem.receive_blocks.push_back(piece.bytes);
      break;
    default:
      break;
  }
  if (spec.kind == Kind::kAllReduce || spec.kind == Kind::kReduce ||
      spec.kind == Kind::kReduceScatter) {
    problem.average = spec.op == kernels::ReduceOp::kAvg;
    problem.premultiply = spec.op == kernels::ReduceOp::kPremulSum;
  }
  if (spec.kind == Kind::kBroadcast || spec.kind == Kind::kReduce || spec.kind == Kind::kGather ||
      spec.kind == Kind::kScatter)
    problem.root = spec.root;
  return problem;
}

void Group::run_st(OperationState& operation) {
  assert_owner();
  Result<std::shared_ptr<const Schedule>> schedule =
      planner_->plan(problem_of(operation.spec, operation.in_place));
  if (!schedule.ok())
    return finish_st(operation, schedule.status().with_prefix(operation.describe() + ": "));
  ExecutionPool& pool = membership_->pool();
  const ScratchBlock scratch = pool.scratch().take((*schedule)->scratch_bytes);
  if (scratch.data == nullptr && (*schedule)->scratch_bytes > 0) {
    const Status why(Code::kResource, operation.describe() + ": no memory for " +
                                          std::to_string((*schedule)->scratch_bytes) +
                                          " bytes of scratch");
    return fail_st(why, operation.sequence(), true);
  }
  operation.set_algorithm((*schedule)->algorithm);
  Execution& execution = pool.take();
  executions_.push_front(execution);
  operation.execution = &execution;
  running_.started();
  execution.start_st(stack_->engine(), *this, view_, operation, std::move(*schedule), scratch);
}

void Group::start_queued_st() {
  while (OperationState* const operation = running_.next()) run_st(*operation);
}

void Group::finished_st(Execution& execution, OperationState& operation) {
  operation.execution = nullptr;
  running_.ended();
  if (!operation.failing && operation.spec.kind == Kind::kAllToAll) {
    if (const Status stray = stray_block_st(operation); !stray.ok()) {
      operation.failing = true;
      operation.failure = stray;
    }
  }
  Status status = operation.failing ? operation.failure : Status();
  bool is_everybodys = false;  // all ranks come to it by themselves
  if (status.ok() && operation.spec.stages != nullptr) {
    Result<bool> more = next_stage(operation);
    if (more.ok() && *more) return run_st(operation);
    status = more.status();
    is_everybodys = status.code() != Code::kResource;
  }
  finish_st(operation, status);
  if (!status.ok() && !is_everybodys) fail_st(status, execution.sequence(), true);
  start_queued_st();
}

void Group::drained_st(Execution& execution) {
  assert_owner();
  executions_.erase(execution);
  membership_->pool().give(execution);
  check_drained_st();
}

void Group::message_done_st(OperationState& operation, const Status& status) {
  finish_st(operation, status);
}

// The end of every operation. The caller may free its memory, and this object, right after.
void Group::finish_st(OperationState& operation, const Status& status) {
  assert_owner();
  operations_.erase(operation);
  deadlines_.ended_st(operation);
  if (status.ok()) {
    if (!operation.staged.outputs.empty()) unstage(operation);
  } else {
    reported_ = true;
  }
  const Time now = std::max(monotonic_now(), operation.submitted);
  const trace::Record record{
      options_.name,         options_.rank,       operation.sequence(), operation.signature,
      operation.bytes,       operation.submitted, operation.started,    now,
      operation.algorithm(), operation.spec.kind, status.code()};
  if (operation.spec.whole != nullptr) {
    operation.spec.whole->part_ended(record, status);
  } else {
    trace::add(record);
  }
  operation.complete(status, now);
  stack_->engine().wake_waiters();
  check_drained_st();
}

// A peer that sends a block where this rank's split list says none: its message was never received.
Status Group::stray_block_st(const OperationState& operation) const {
  for (int rank = 0; rank < options_.world; ++rank) {
    if (rank == options_.rank || operation.spec.outputs[rank].bytes > 0) continue;
    const harp::MessageKey key{options_.id, collective_tag(operation.sequence(), 0)};
    if (!stack_->engine().transport().has_unmatched_st(options_.peers[rank], key)) continue;
    return Status(Code::kMismatch, operation.describe() + ": " + describe_rank(rank) +
                                       " sent a block to rank " + std::to_string(options_.rank) +
                                       ", whose split list expects none from it");
  }
  return Status();
}

}  // namespace taco::pg
