#include "pg/controller/submission.h"

#include <chrono>

#include "base/names.h"

namespace taco::pg::controller {

bool PendingRequest::wait_until(Time until) {
  if (done()) return true;
  std::unique_lock lock(mutex_);
  while (!done()) {
    if (until == kNever) {
      ended_.wait(lock);
      continue;
    }
    const Duration left = until - monotonic_now();
    if (left <= 0) return false;
    ended_.wait_for(lock, std::chrono::nanoseconds(left));
  }
  return true;
}

void PendingRequest::end(Outcome outcome) {
  tensors.reset();
  outcome_ = std::move(outcome);
  std::lock_guard lock(mutex_);
  done_.store(true, std::memory_order_release);
  ended_.notify_all();
}

std::string PendingRequest::describe() const {
  return std::string(name_of(request.kind)) + " '" + printable(request.name) + "'";
}

}  // namespace taco::pg::controller
