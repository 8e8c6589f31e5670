// Extensions of a group's timeout that a program asks for by addEphemeralTimeout(). Each is added
// to every operation that starts after the call, until the first of those has ended. Any thread.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "base/clock.h"
#include "pg/operation.h"

namespace taco::pg {

class EphemeralTimeouts {
 public:
  void add(Duration extension);
  // By how much the next operation's timeout is longer.
  Duration extra();
  // It has started; extensions that have no operation yet last as long as it.
  void started(const OperationPtr& operation);

 private:
  struct Extension {
    Duration by = 0;
    OperationPtr until;  // null: none has started since
  };

  std::atomic<bool> any_{false};  // the usual group never takes the lock
  std::mutex mutex_;
  std::vector<Extension> extensions_;
};

}  // namespace taco::pg
