// How a process comes by its Stack: one is shared by every group, but for groups in which the
// process is several ranks; it is made again after it was closed, and never inherited by a forked
// child.
#include "harp/engine/stack.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <vector>

#include "base/env.h"
#include "base/fork.h"
#include "harp/drivers/networks.h"
#include "harp/engine/interfaces.h"
#include "harp/engine/security_settings.h"
#include "harp/engine/stack_core.h"
#include "harp/engine/stacks.h"
#include "harp/session/congestion.h"

namespace taco::harp {

namespace {

// A mutex that another thread held while forking stays locked in the child for ever, so each
// process incarnation has a registry of its own, and the parent's is left behind.
struct Registry {
  const std::uint32_t generation;
  std::mutex mutex;
  std::vector<std::weak_ptr<Stack>> stacks;  // oldest first; guarded by mutex
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
  TACO_RETURN_IF_ERROR(
      congestion_named(env.value().congestion).status().with_prefix("TACO_CONGESTION="));
  TACO_RETURN_IF_ERROR(SecuritySettings::get().status());
  TACO_RETURN_IF_ERROR(network_named(env.value().harp_driver).status());
  options.driver = env.value().harp_driver;
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
  return acquire_beside({}, options);
}

Result<std::shared_ptr<Stack>> acquire_beside(const std::vector<const Stack*>& occupied,
                                              const StackOptions& options) {
  Registry& mine = registry();
  std::lock_guard lock(mine.mutex);
  std::shared_ptr<Stack> found;
  std::erase_if(mine.stacks, [&](const auto& weak) {
    auto stack = weak.lock();
    if (stack == nullptr || !stack->usable().ok()) return true;
    const bool free = std::ranges::count(occupied, stack.get()) == 0;
    if (free && found == nullptr) found = std::move(stack);
    return false;
  });
  if (found != nullptr) return found;
  auto made = StackCore::create(options);
  if (made.ok()) mine.stacks.push_back(made.value());
  return made;
}

StackStats& operator+=(StackStats& sum, const StackStats& other) {
  for (const auto counter : {&StackStats::bytes_sent,
                             &StackStats::bytes_received,
                             &StackStats::packets_sent,
                             &StackStats::packets_received,
                             &StackStats::retransmits,
                             &StackStats::spurious_retransmits,
                             &StackStats::checksum_failures,
                             &StackStats::refused_packets,
                             &StackStats::duplicates,
                             &StackStats::bytes_copied,
                             &StackStats::socket_overflows,
                             &StackStats::shm_bytes,
                             &StackStats::shm_messages,
                             &StackStats::doorbells,
                             &StackStats::sleeps,
                             &StackStats::sessions,
                             &StackStats::paths,
                             &StackStats::paths_left,
                             &StackStats::paths_moved,
                             &StackStats::shm_links,
                             &StackStats::peers,
                             &StackStats::credit_outstanding,
                             &StackStats::unmatched}) {
    sum.*counter += other.*counter;
  }
  sum.path_bytes = StackStats::narrower(sum.path_bytes, other.path_bytes);
  return sum;
}

}  // namespace taco::harp
