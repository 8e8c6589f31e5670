#include "pg/c10d/relay.h"

#include <utility>

#include "pg/execution/completion_thread.h"

namespace taco::pg {
namespace {

using c10::ivalue::Future;

thread_local bool t_in_passing = false;

}  // namespace

CompletedInPassing::CompletedInPassing() : previous_(std::exchange(t_in_passing, true)) {}
CompletedInPassing::~CompletedInPassing() { t_in_passing = previous_; }

c10::intrusive_ptr<Future> make_relay(Future& source) {
  auto relay = source.createInstance(source.elementType());
  source.addCallback([relay](Future& done) {
    const std::exception_ptr error = done.exception_ptr();
    auto follow = [relay, error, value = error ? c10::IValue() : done.value()] {
      if (error) {
        relay->setError(error);
      } else {
        relay->markCompleted(value);
      }
    };
    if (t_in_passing) {
      completion::post(std::move(follow));
    } else {
      follow();
    }
  });
  return relay;
}

}  // namespace taco::pg
