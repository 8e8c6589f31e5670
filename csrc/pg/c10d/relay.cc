#include "pg/c10d/relay.h"

#include <utility>

#include "base/completion_thread.h"

namespace taco::pg {

using c10::ivalue::Future;

c10::intrusive_ptr<Future> make_relay(Future& source) {
  auto relay = source.createInstance(source.elementType());
  source.addCallback([relay](Future& done) {
    const std::exception_ptr error = done.exception_ptr();
    completion::post([relay, error, value = error ? c10::IValue() : done.value()] {
      if (error) {
        relay->setError(error);
      } else {
        relay->markCompleted(value);
      }
    });
  });
  return relay;
}

}  // namespace taco::pg
