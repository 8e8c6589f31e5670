#include "pg/execution/operation_state.h"

#include <utility>

#include "base/completion_thread.h"
#include "pg/execution/signature.h"

namespace taco::pg {

OperationState::OperationState(OperationSpec operation, OperationRunner& runner,
                               std::weak_ptr<harp::Stack> stack)
    : spec(std::move(operation)), runner_(runner), stack_(std::move(stack)) {}

Status OperationState::status() const { return done() ? status_ : Status(); }

Duration OperationState::elapsed() const { return (done() ? ended_ : monotonic_now()) - submitted; }

Status OperationState::wait(Duration timeout, Time until) {
  if (event_.is_set()) return status_;
  const std::shared_ptr<harp::Stack> stack = stack_.lock();
  if (stack == nullptr) return Status(Code::kAborted, "the transport is gone");
  if (stack->engine().in_engine())
    return Status(Code::kInternal, "waiting on the engine's own thread would never end");
  completion::Blocked blocked;
  if (stack->engine().wait(event_, until)) return status_;
  // In a forked child, say, nobody works on it.
  TACO_RETURN_IF_ERROR(stack->usable().with_prefix(describe() + ": "));
  if (timeout <= 0) return Status(Code::kAborted, describe() + ": the transport stopped");
  return Status(Code::kTimeout, describe() + ": Timed out waiting " +
                                    std::to_string(timeout / kMillisecond) +
                                    "ms for it to complete; it goes on");
}

bool OperationState::wait_until(Time until) {
  if (event_.is_set()) return true;
  const std::shared_ptr<harp::Stack> stack = stack_.lock();
  if (stack == nullptr || stack->engine().in_engine()) return true;
  completion::Blocked blocked;
  return stack->engine().wait(event_, until) || monotonic_now() < until;
}

void OperationState::on_complete(std::function<void()> callback) {
  {
    std::lock_guard lock(mutex_);
    if (!event_.is_set()) {
      callbacks_.push_back(std::move(callback));
      return;
    }
  }
  completion::post(std::move(callback));
}

void OperationState::run_st(harp::Transport& transport) { runner_.take_st(*this, transport); }

std::string OperationState::describe() const {
  const std::string text = describe_signature(signature);
  if (!is_point_to_point()) return text + " (sequence " + std::to_string(sequence_) + ")";
  std::string name = name_of(spec.kind);
  if (is_one_sided(spec.kind)) {
    name +=
        (spec.kind == Kind::kWaitSignal ? " of rank " : " to rank ") + std::to_string(spec.root);
    if (spec.kind != Kind::kPut) return name;
    return name + text.substr(text.find(' ')) + " at byte " + std::to_string(spec.offset);
  }
  if (spec.kind == Kind::kSend) {
    name += " to rank " + std::to_string(spec.root);
  } else {
    name += spec.root < 0 ? " from any rank" : " from rank " + std::to_string(spec.root);
  }
  return name + text.substr(text.find(' ')) + " (tag " + std::to_string(spec.tag) + ")";
}

void OperationState::complete(const Status& status, Time now) {
  std::vector<std::function<void()>> callbacks;
  // All others that hold the operation may let go of it as soon as the event is set.
  const std::shared_ptr<OperationState> keep = std::move(self);
  status_ = status;
  ended_ = now;
  if (spec.ended_st) spec.ended_st(status, now - submitted);
  {
    std::lock_guard lock(mutex_);
    event_.set();
    callbacks.swap(callbacks_);
  }
  for (std::function<void()>& callback : callbacks) completion::post(std::move(callback));
}

}  // namespace taco::pg
