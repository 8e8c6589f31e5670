// A future of torch runs its callbacks on whichever thread completes it. A waiter that completes
// the future of its Work must not run them: they may wait, take locks that the waiter holds, or
// start collectives. So those attached in Python hang on a relay, a second future with the same
// value, which a waiter leaves to a completion thread. Any thread.
#pragma once

#include <ATen/core/ivalue.h>

namespace taco::pg {

// While one lives, this thread completes futures in passing: relays follow on a completion thread.
// Without one they follow at once, on this thread.
class CompletedInPassing {
 public:
  CompletedInPassing();
  ~CompletedInPassing();
  CompletedInPassing(const CompletedInPassing&) = delete;
  CompletedInPassing& operator=(const CompletedInPassing&) = delete;

 private:
  bool previous_;
};

c10::intrusive_ptr<c10::ivalue::Future> make_relay(c10::ivalue::Future& source);

}  // namespace taco::pg
