#include "pg/c10d/backend_registry.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <vector>

#include "pg/c10d/backend.h"
#include "pg/execution/completion_thread.h"

namespace taco::pg {
namespace {

struct Registry {
  std::mutex stack_mutex;  // held while a Stack is made or closed: nobody gets a closing one
  std::shared_ptr<harp::Stack> stack;
  std::map<harp::Stack*, int> users;

  std::mutex live_mutex;
  std::vector<c10::weak_intrusive_ptr<Backend>> live;
};

// Never destroyed: a backend may be dropped during static destruction.
Registry& registry() {
  static Registry* instance = new Registry;
  return *instance;
}

std::vector<c10::intrusive_ptr<Backend>> live_backends() {
  std::lock_guard lock(registry().live_mutex);
  std::vector<c10::intrusive_ptr<Backend>> all;
  auto& live = registry().live;
  std::erase_if(live, [](const auto& weak) { return weak.expired(); });
  for (const auto& weak : live) {
    if (auto backend = weak.lock()) all.push_back(std::move(backend));
  }
  return all;
}

}  // namespace

Result<std::shared_ptr<harp::Stack>> hold_stack(const harp::StackOptions& options) {
  std::lock_guard lock(registry().stack_mutex);
  Result<std::shared_ptr<harp::Stack>> stack = harp::Stack::acquire(options);
  if (!stack.ok()) return stack;
  ++registry().users[stack->get()];
  registry().stack = *stack;
  return stack;
}

void drop_stack(const std::shared_ptr<harp::Stack>& stack) {
  if (!stack) return;
  std::lock_guard lock(registry().stack_mutex);
  auto entry = registry().users.find(stack.get());
  if (entry == registry().users.end() || --entry->second > 0) return;
  registry().users.erase(entry);
  if (registry().stack == stack) registry().stack.reset();
  stack->close();
}

std::shared_ptr<harp::Stack> current_stack() {
  std::lock_guard lock(registry().stack_mutex);
  return registry().stack;
}

void add_live(const c10::intrusive_ptr<Backend>& backend) {
  std::lock_guard lock(registry().live_mutex);
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
