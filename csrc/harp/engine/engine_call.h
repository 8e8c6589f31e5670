// Runs a function on a Stack's engine and waits for it. Any thread, without the GIL and without a
// lock that the engine takes; on the engine itself it simply runs. And waits for an engine's event.
#pragma once

#include <atomic>
#include <functional>
#include <memory>

#include "base/heed.h"
#include "harp/engine/stack.h"

namespace taco::harp {

// False when the engine did not come to it before `deadline`: then it never will.
inline bool call_on_engine(Engine& engine, std::function<void(Transport&)> function,
                           Time deadline = kNever) {
  struct Call final : Task {
    enum State { kPending, kRuns, kAbandoned };
    explicit Call(Engine& e) : engine(e) {}
    void run_st(Transport& transport) override {
      const std::shared_ptr<Call> keep = std::move(self);
      int expected = kPending;
      if (!state.compare_exchange_strong(expected, kRuns)) return;
      function(transport);
      done.set();
      engine.wake_waiters();
    }
    Engine& engine;
    std::function<void(Transport&)> function;
    Event done;
    std::atomic<int> state{kPending};
    std::shared_ptr<Call> self;  // while the engine may still run it
  };
  if (engine.in_engine()) {
    function(engine.transport());
    return true;
  }
  auto call = std::make_shared<Call>(engine);
  call->function = std::move(function);
  call->self = call;
  engine.submit(*call, true);
  if (engine.wait(call->done, deadline)) return true;
  int expected = Call::kPending;
  if (call->state.compare_exchange_strong(expected, Call::kAbandoned)) return false;
  engine.wait(call->done, kNever);  // it runs at this moment
  return true;
}

// Whether the event is set before that time, or why this thread waits no longer (base/heed.h).
inline Result<bool> wait_and_heed(Engine& engine, const Event& event, Time until) {
  return taco::wait_and_heed(until, [&](Time time) { return engine.wait(event, time); });
}

}  // namespace taco::harp
