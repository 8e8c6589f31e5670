#include "pg/c10d/backend_registry.h"

#include <algorithm>
#include <mutex>
#include <vector>

#include "harp/engine/stacks.h"
#include "pg/c10d/backend.h"
#include "pg/execution/completion_thread.h"

namespace taco::pg {
namespace {

struct Registry {
  struct User {
    Member member;
    std::shared_ptr<harp::Stack> stack;
  };
  std::mutex stack_mutex;  // held while a Stack is made, but not while one is closed
  std::vector<User> users;
  std::vector<std::shared_ptr<harp::Stack>> closing;  // nobody gets one of these any more

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

Result<HeldStack> hold_stack(const harp::StackOptions& options, const Member& member) {
  std::lock_guard lock(registry().stack_mutex);
  auto& users = registry().users;
  // In a forked child these are the parent's, who goes on using them.
  std::erase_if(users, [](const auto& user) { return !user.stack->usable().ok(); });
  std::vector<const harp::Stack*> occupied;
  for (const auto& stack : registry().closing) occupied.push_back(stack.get());
  const std::size_t closing = occupied.size();
  for (const auto& user : users) {
    if (user.member.group == member.group && user.member.world == member.world &&
        user.member.rank != member.rank)
      occupied.push_back(user.stack.get());
  }
  Result<std::shared_ptr<harp::Stack>> stack = harp::acquire_beside(occupied, options);
  if (!stack.ok()) return stack.status();
  users.push_back({member, *stack});
  return HeldStack{std::move(stack).value(), occupied.size() > closing};
}

void drop_stack(const std::shared_ptr<harp::Stack>& stack, const Member& member) {
  if (!stack) return;
  std::unique_lock lock(registry().stack_mutex);
  auto& users = registry().users;
  const auto mine = std::ranges::find_if(
      users, [&](const auto& user) { return user.stack == stack && user.member == member; });
  if (mine == users.end()) return;
  users.erase(mine);
  const bool in_use =
      std::ranges::any_of(users, [&](const auto& user) { return user.stack == stack; });
  if (in_use) return;
  // The goodbye may take its time, which other groups and statistics need not wait for.
  registry().closing.push_back(stack);
  lock.unlock();
  stack->close();
  lock.lock();
  std::erase(registry().closing, stack);
}

std::vector<std::shared_ptr<harp::Stack>> live_stacks() {
  std::lock_guard lock(registry().stack_mutex);
  std::vector<std::shared_ptr<harp::Stack>> stacks;
  for (const auto& user : registry().users) {
    if (std::ranges::count(stacks, user.stack) == 0) stacks.push_back(user.stack);
  }
  return stacks;
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
