#include "pg/c10d/backend_registry.h"

#include <mutex>
#include <vector>

#include "base/completion_thread.h"
#include "base/per_process.h"
#include "pg/c10d/backend.h"

namespace taco::pg {
namespace {

struct Registry {
  std::mutex mutex;
  std::vector<c10::weak_intrusive_ptr<Backend>> live;
};

constinit PerProcess<Registry> registry;

std::vector<c10::intrusive_ptr<Backend>> live_backends() {
  std::lock_guard lock(registry().mutex);
  std::vector<c10::intrusive_ptr<Backend>> all;
  auto& live = registry().live;
  std::erase_if(live, [](const auto& weak) { return weak.expired(); });
  for (const auto& weak : live) {
    if (auto backend = weak.lock()) all.push_back(std::move(backend));
  }
  return all;
}

}  // namespace

void add_live(const c10::intrusive_ptr<Backend>& backend) {
  std::lock_guard lock(registry().mutex);
  auto& live = registry().live;
  std::erase_if(live, [](const auto& weak) { return weak.expired(); });
  live.emplace_back(backend);
}

void shut_down_all() {
  // Not abort(): ranks that still finish with what this one has sent already must not fail.
  for (const auto& backend : live_backends()) (void)backend->leave();
  completion::join();
}

}  // namespace taco::pg
