// A future of torch runs its callbacks on whichever thread completes it. A waiter that completes
// the future of its Work must not run them: they may wait, take locks that the waiter holds, or
// start collectives; and while they run, the Work's other future is not done. So those attached in
// Python hang on a relay, a second future with the same value, which follows on a completion
// thread. Any thread.
#pragma once

#include <ATen/core/ivalue.h>

namespace taco::pg {

c10::intrusive_ptr<c10::ivalue::Future> make_relay(c10::ivalue::Future& source);

}  // namespace taco::pg
