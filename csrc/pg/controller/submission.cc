#include "pg/controller/submission.h"

namespace taco::pg::controller {

bool PendingRequest::wait_until(Time until) {
  if (done()) return true;
  std::unique_lock lock(mutex_);
  return ended_.wait_until(lock, until, [this] { return done(); });
}

void PendingRequest::end(Outcome outcome) {
  tensors.reset();
  outcome_ = std::move(outcome);
  std::lock_guard lock(mutex_);
  done_.store(true, std::memory_order_release);
  ended_.notify_all();
}

std::string PendingRequest::describe() const { return described(request); }

}  // namespace taco::pg::controller
