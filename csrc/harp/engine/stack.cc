// How a process comes by its Stack: at most one lives at a time, shared by every group, made again
// after the last was closed, and never inherited by a forked child.
#include "harp/engine/stack.h"

#include <atomic>
#include <mutex>

#include "base/env.h"
#include "harp/engine/interfaces.h"
#include "harp/engine/stack_core.h"
#include "harp/fork.h"

namespace taco::harp {

namespace {

// A mutex that another thread held while forking stays locked in the child for ever, so each
// process incarnation has a registry of its own, and the parent's is left behind.
struct Registry {
  const std::uint32_t generation;
  std::mutex mutex;
  std::weak_ptr<Stack> current;  // guarded by mutex
};

Registry& registry() {
  static std::atomic<Registry*> newest{nullptr};
  for (;;) {
    Registry* known = newest.load();
    if (known != nullptr && known->generation == fork_generation()) return *known;
    auto* made = new Registry{fork_generation(), {}, {}};
    if (newest.compare_exchange_strong(known, made)) return *made;
    delete made;
  }
}

}  // namespace

Result<StackOptions> StackOptions::from_env() {
  const auto env = Env::get();
  if (!env.ok()) return env.status();
  StackOptions options;
  TACO_RETURN_IF_ERROR(
      parse_interface_names(env.value().ifname, &options.interfaces, &options.excluded_interfaces));
  options.host_id = env.value().host_id;
  options.peer_timeout = env.value().peer_timeout;
  const std::string& transport = env.value().transport;
  if (transport == "shm") {
    options.transport = Force::kShm;
  } else if (transport == "udp") {
    options.transport = Force::kUdp;
  } else if (transport != "auto") {
    return Status(Code::kInvalidArgument,
                  "TACO_TRANSPORT=\"" + transport + "\": expected auto, shm or udp");
  }
  return options;
}

Result<std::shared_ptr<Stack>> Stack::acquire(const StackOptions& options) {
  Registry& mine = registry();
  const std::lock_guard<std::mutex> lock(mine.mutex);
  if (auto current = mine.current.lock(); current != nullptr && current->usable().ok()) {
    return current;
  }
  auto made = StackCore::create(options);
  if (made.ok()) mine.current = made.value();
  return made;
}

}  // namespace taco::harp
