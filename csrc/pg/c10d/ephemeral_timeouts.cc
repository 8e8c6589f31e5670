#include "pg/c10d/ephemeral_timeouts.h"

#include "base/far_future.h"

namespace taco::pg {

void EphemeralTimeouts::add(Duration extension) {
  std::lock_guard lock(mutex_);
  extensions_.push_back({extension, nullptr});
  any_.store(true, std::memory_order_release);
}

Duration EphemeralTimeouts::extra() {
  if (!any_.load(std::memory_order_acquire)) return 0;
  std::lock_guard lock(mutex_);
  std::erase_if(extensions_, [](const Extension& one) { return one.until && one.until->done(); });
  any_.store(!extensions_.empty(), std::memory_order_release);
  Duration sum = 0;
  for (const Extension& one : extensions_) sum = later(sum, one.by);
  return sum;
}

void EphemeralTimeouts::started(const OperationPtr& operation) {
  if (!any_.load(std::memory_order_acquire)) return;
  std::lock_guard lock(mutex_);
  for (Extension& one : extensions_) {
    if (!one.until) one.until = operation;
  }
}

}  // namespace taco::pg
