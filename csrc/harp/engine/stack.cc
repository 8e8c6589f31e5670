// How a process comes by its Stacks: one for each engine, shared by every group of that engine but
// for groups in which the process is several ranks; it is made again after it was closed, and never
// inherited by a forked child.
#include "harp/engine/stack.h"

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <utility>
#include <vector>

#include "base/env.h"
#include "base/per_process.h"
#include "harp/drivers/networks.h"
#include "harp/engine/engine_cores.h"
#include "harp/engine/interfaces.h"
#include "harp/engine/security_settings.h"
#include "harp/engine/stack_core.h"
#include "harp/engine/stacks.h"
#include "harp/secret.h"
#include "harp/session/congestion.h"

namespace taco::harp {

namespace {

struct Registry {
  struct Entry {
    std::weak_ptr<Stack> stack;
    int number = 0;  // see unused_number()
    StackOptions::Force transport = StackOptions::Force::kAuto;
    std::string driver;
  };
  std::mutex mutex;
  std::vector<Entry> entries;  // oldest first; guarded by mutex
};

constinit PerProcess<Registry> registry;

// A Stack's number is its own among those of the process, and says its engine: it is that, or more
// by a multiple of `engines` where ranks are threads.
int unused_number(const Registry& registry, const StackOptions& options) {
  int number = options.engine;
  while (std::ranges::count(registry.entries, number, &Registry::Entry::number) != 0) {
    number += options.engines;
  }
  return number;
}

// Errors say why this process cannot have as many engines as it is to have.
Status take_engines(const Env& env, const Network& network, StackOptions* options) {
  options->engines = static_cast<int>(env.harp_engines);
  TACO_RETURN_IF_ERROR(network.check_engines(static_cast<std::uint32_t>(options->engines)));
  if (env.harp_cores.empty()) return {};
  const auto self = LocalRank::from_env("which part of TACO_HARP_CORES is this rank's");
  if (!self.ok()) return self.status();
  auto cores = engine_cores(env.harp_cores, options->engines, self.value());
  if (!cores.ok()) return cores.status();
  options->cores = std::move(cores).value();
  return {};
}

// One that is closed by its own engine, in the middle of a turn, could not end that.
void close_all() {
  std::vector<std::shared_ptr<Stack>> open;
  {
    Registry& mine = registry();
    std::lock_guard lock(mine.mutex);
    for (const Registry::Entry& entry : mine.entries) {
      if (auto stack = entry.stack.lock()) open.push_back(std::move(stack));
    }
  }
  for (const auto& stack : open) {
    if (!stack->engine().in_engine()) stack->close();
  }
}

// A program may end by exit() with Stacks open, whose engines would go on while all that they use
// is taken apart. What a process asks for at its exit is done in reverse order: so this is done
// before libcrypto ends, if the program has used that before.
void prepare_exit() {
  keep_crypto_library();
  [[maybe_unused]] static const int prepared = std::atexit(close_all);
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
  const auto network = network_named(env.value().harp_driver);
  if (!network.ok()) return network.status();
  TACO_RETURN_IF_ERROR(take_engines(env.value(), *network.value(), &options));
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
  std::erase_if(mine.entries, [&](const Registry::Entry& entry) {
    auto stack = entry.stack.lock();
    if (stack == nullptr || !stack->usable().ok()) return true;
    const bool is_asked_for = entry.transport == options.transport &&
                              entry.driver == options.driver &&
                              entry.number % options.engines == options.engine;
    const bool free = is_asked_for && std::ranges::count(occupied, stack.get()) == 0;
    if (free && found == nullptr) found = std::move(stack);
    return false;
  });
  if (found != nullptr) return found;
  prepare_exit();
  const int number = unused_number(mine, options);
  auto made = StackCore::create(options, number);
  if (made.ok()) {
    mine.entries.push_back({made.value(), number, options.transport, options.driver});
  }
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
