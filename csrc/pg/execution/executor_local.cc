// The steps that involve nobody else: copies, arithmetic, and what a codec does.
#include <algorithm>

#include "base/timeline.h"
#include "pg/execution/executor.h"
#include "pg/execution/trace.h"

namespace taco::pg {
namespace {

// Every step costs something, however short.
void spend(std::size_t& budget, std::size_t bytes) {
  constexpr std::size_t kMin = 64;
  budget -= std::min(budget, std::max(bytes, kMin));
}

}  // namespace

std::byte* Execution::address(const Slice& slice) const {
  switch (slice.space) {
    case Space::kInput:
      return operation_->spec.inputs[slice.piece].data + slice.offset;
    case Space::kOutput:
      return operation_->spec.outputs[slice.piece].data + slice.offset;
    case Space::kScratch:
      return scratch_.data + slice.offset;
    case Space::kResidual:
      break;  // no bytes: the codec has it as a Feedback
  }
  return nullptr;
}

// A large output that is neither read before nor passed on: its lines are not in the caches, and
// would only drive out the staged copies. Measured with 4 ranks of one host, 32 MiB: a fifth.
bool Execution::writes_cold(const Step& step) const {
  return cold_output_ && step.destination.space == Space::kOutput && step.dependents == 0;
}

// Works on local steps that are ready until none is left or this turn's share is used up.
void Execution::pump() {
  if (busy_ || continuing_ || failing_) return;
  busy_ = true;
  std::size_t budget = schedule_->turn_bytes;
  while (local_head_ < local_.size() && !failing_) {
    if (budget == 0) {
      continuing_ = true;
      engine_->submit(*this, false);
      break;
    }
    const std::uint32_t index = local_[local_head_];
    const Step& step = schedule_->steps[index];
    if (!(step.is_coding() ? code(step, budget) : compute(step, budget))) continue;
    ++local_head_;
    finish_step(index);
  }
  if (local_head_ == local_.size()) {
    local_.clear();
    local_head_ = 0;
  }
  busy_ = false;
}

void Execution::run_st(harp::Transport&) {
  continuing_ = false;
  pump();
  finish_if_done();
}

// At most `budget` bytes, but one element at least. True when that was the last of the step.
bool Execution::compute(const Step& step, std::size_t& budget) {
  const std::size_t left = step.destination.bytes - local_offset_;
  std::size_t bytes = std::min(left, std::max(budget, element_bytes_));
  bytes -= bytes % element_bytes_ != 0 && bytes != left ? bytes % element_bytes_ : 0;
  std::byte* destination = address(step.destination) + local_offset_;
  const std::byte* source = address(step.source) + local_offset_;
  const std::size_t count = bytes / element_bytes_;
  const OperationSpec& spec = operation_->spec;
  switch (step.kind) {
    case StepKind::kCopy:
      if (destination == source) break;
      if (writes_cold(step)) {
        kernels::copy_cold(destination, source, bytes);
      } else {
        kernels::copy(destination, source, bytes);
      }
      break;
    case StepKind::kReduce:
      kernels::reduce(reduce_, destination, source, address(step.operand) + local_offset_, count,
                      element_bytes_);
      break;
    case StepKind::kScale:
      kernels::scale(spec.dtype, destination, source, count, spec.premul);
      break;
    case StepKind::kDivide:
      kernels::divide(spec.dtype, destination, source, count, group_->world);
      break;
    default:
      break;
  }
  spend(budget, bytes);
  local_offset_ = bytes == left ? 0 : local_offset_ + bytes;
  return bytes == left;
}

// About `budget` bytes of what is not coded. True when that was the last of the step. One that
// fails is never done, and nothing that depends on it begins.
bool Execution::code(const Step& step, std::size_t& budget) {
  if (!coding_) {
    coding_ = coding_of(step);
    coding_since_ = timeline::enabled() ? monotonic_now() : 0;
  }
  const Codec& codec = *operation_->spec.codec;
  Length& length = lengths_[step.length];
  const bool encodes = step.kind == StepKind::kEncode;
  Result<std::size_t> worked =
      encodes ? codec.encode(*coding_, budget) : codec.decode(*coding_, budget);
  if (!worked.ok()) {
    ++local_head_;
    coding_.reset();
    owner_->broken_st(*this, length.from, worked.status());
    return false;
  }
  spend(budget, *worked);
  if (!coding_->done) return false;
  if (encodes) length = {coding_->written, group_->rank};
  coding_.reset();
  if (coding_since_ != 0) {
    trace::add_coded({group_->name, sequence_, name_of(step.kind), codec.name(),
                      step.worked_on().bytes, length.bytes, coding_since_, monotonic_now(),
                      group_->rank});
  }
  return true;
}

Coding Execution::coding_of(const Step& step) const {
  Coding coding;
  const bool encodes = step.kind == StepKind::kEncode;
  coding.source = address(step.source);
  coding.source_bytes = encodes ? step.source.bytes : lengths_[step.length].bytes;
  coding.destination = address(step.destination);
  coding.destination_bytes = step.destination.bytes;
  coding.dtype = operation_->spec.dtype;
  if (encodes && step.operand.bytes > 0) {
    coding.feedback = operation_->spec.feedback.get();
    coding.feedback_from = step.operand.offset / element_bytes_;
  }
  if (step.divides) coding.divisor = static_cast<std::uint32_t>(group_->world);
  if (step.kind == StepKind::kDecodeReduce) {
    coding.operand = address(step.operand);
    coding.reduce = reduce_;
  }
  return coding;
}

}  // namespace taco::pg
