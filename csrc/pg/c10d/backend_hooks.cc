// Hooks, longer timeouts and estimates of time: torch asks for them beside collectives.
#include <utility>

#include "edge/errors.h"
#include "pg/c10d/backend.h"
#include "pg/c10d/backend_tensors.h"

namespace taco::pg {
namespace {

float milliseconds(Duration elapsed) { return static_cast<float>(elapsed) / kMillisecond; }

}  // namespace

void Backend::addEphemeralTimeout(const std::chrono::milliseconds& timeout) {
  TORCH_CHECK_VALUE(timeout.count() >= 0, "taco: a timeout is extended by 0 ms or more, not by ",
                    timeout.count());
  ephemeral_timeouts_.add(to_duration(timeout));
}

// 0: the group's, or none, which nothing extends.
Duration Backend::timeout_of(const Call& call) {
  const Duration extra = ephemeral_timeouts_.extra();
  const Duration own = to_duration(call.timeout);
  if (extra == 0) return own;
  const Duration base = own > 0 ? own : to_duration(options_->timeout);
  return base > 0 ? later(base, extra) : 0;
}

c10::intrusive_ptr<c10d::Work> Backend::estimate(Translation& translation, const Call& call,
                                                 const std::vector<at::Tensor>& inputs,
                                                 std::vector<at::Tensor> results) {
  const std::shared_ptr<Generation> now = generation();
  const Cost cost = value_or_raise(communicator_here(*now)->predict(std::move(translation.spec)));
  estimates_.add(cost.seconds);
  // Nothing has been received that could be copied to tensors of any layout.
  translation.state->copy_backs.clear();
  translation.state->at_end = nullptr;
  translation.state->results = std::move(results);
  return work_of(translation.state, {call.type, nullptr}, inputs, *now);
}

float Backend::endTimeEstimate() {
  const std::optional<double> seconds = estimates_.end();
  TORCH_CHECK(seconds, "taco: the end of a time estimate that this thread has not begun");
  return static_cast<float>(*seconds * 1e6);
}

void Backend::registerCompletionHook(std::int64_t number, CompletionHook hook) {
  completion_hooks_->add(number, std::move(hook));
}

void Backend::registerAbortHook(std::int64_t number, AbortHook hook) {
  abort_hooks_->add(number, std::move(hook));
}

void Backend::hear_of_failures(Generation& generation) {
  generation.communicator()->on_failure([hooks = abort_hooks_] { hooks->call(); });
}

// A failure tells nobody: to those who keep a record it stays under way for ever.
void Backend::report_completion(const WorkStatePtr& state, OperationSpec& spec) {
  if (completion_hooks_->empty()) return;
  spec.ended_st = [hooks = completion_hooks_, key = state->key](const Status& status,
                                                                Duration elapsed) {
    if (status.ok()) hooks->call(CompletionHookArgs{key, milliseconds(elapsed)});
  };
}

void Backend::report_completion_of_all(const WorkStatePtr& state) {
  if (completion_hooks_->empty()) return;
  state->on_complete([hooks = completion_hooks_, state, begin = monotonic_now()] {
    if (!state->error())
      hooks->call(CompletionHookArgs{state->key, milliseconds(monotonic_now() - begin)});
  });
}

}  // namespace taco::pg
