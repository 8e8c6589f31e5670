// From Status to exceptions: the one place where failure leaves our convention for torch's.
//   kInvalidArgument ValueError, kUnsupported TypeError, kPeerLost PeerLostError, kTimeout
//   CollectiveTimeoutError, kMismatch MismatchError, kRendezvous RendezvousError, ... (errors.py)
// The exceptions keep their Python type on every way out of torch: pybind11 calls, the autograd
// engine (a DDP reducer fails there), futures, and functional collectives.
#pragma once

#include <exception>

#include "base/status.h"

namespace taco {

// Any thread, no GIL needed. `status` must not be ok.
std::exception_ptr exception_of(const Status& status);
[[noreturn]] void raise(const Status& status);

inline void raise_if_error(const Status& status) {
  if (!status.ok()) raise(status);
}

template <class T>
T value_or_raise(Result<T> result) {
  if (!result.ok()) raise(result.status());
  return std::move(result).value();
}

}  // namespace taco
