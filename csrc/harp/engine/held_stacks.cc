#include "harp/engine/held_stacks.h"

#include <algorithm>
#include <mutex>

#include "base/digest.h"
#include "base/mixed_bits.h"
#include "base/parse_number.h"
#include "base/per_process.h"
#include "harp/engine/stacks.h"

namespace taco::harp {
namespace {

struct HeldStacks {
  struct User {
    Member member;
    std::shared_ptr<Stack> stack;
  };
  std::mutex mutex;  // held while a Stack is made, but not while one is closed
  std::vector<User> users;
  std::vector<std::shared_ptr<Stack>> closing;  // nobody gets one of these any more
};

constinit PerProcess<HeldStacks> held_stacks;

}  // namespace

int engine_of(std::string_view group, int engines) {
  const auto counted = parse_number<std::uint64_t>(group);
  const std::uint64_t number =
      counted ? *counted : mixed_bits(taco::Digest().add_text(group).value());
  return static_cast<int>(number % static_cast<std::uint64_t>(engines));
}

Result<HeldStack> hold_stack(const StackOptions& asked, const Member& member, int further) {
  StackOptions options = asked;
  options.engine = (engine_of(member.group, options.engines) + further) % options.engines;
  std::lock_guard lock(held_stacks().mutex);
  auto& users = held_stacks().users;
  std::vector<const Stack*> occupied;
  for (const auto& stack : held_stacks().closing) occupied.push_back(stack.get());
  const std::size_t closing = occupied.size();
  for (const auto& user : users) {
    if (user.member.group == member.group && user.member.world == member.world &&
        user.member.rank != member.rank)
      occupied.push_back(user.stack.get());
  }
  Result<std::shared_ptr<Stack>> stack = acquire_beside(occupied, options);
  if (!stack.ok()) return stack.status();
  users.push_back({member, *stack});
  return HeldStack{std::move(stack).value(), occupied.size() > closing};
}

void drop_stack(const std::shared_ptr<Stack>& stack, const Member& member) {
  if (!stack) return;
  std::unique_lock lock(held_stacks().mutex);
  auto& users = held_stacks().users;
  const auto mine = std::ranges::find_if(
      users, [&](const auto& user) { return user.stack == stack && user.member == member; });
  if (mine == users.end()) return;
  users.erase(mine);
  const bool in_use =
      std::ranges::any_of(users, [&](const auto& user) { return user.stack == stack; });
  if (in_use) return;
  // The goodbye may take its time, which other groups and statistics need not wait for.
  held_stacks().closing.push_back(stack);
  lock.unlock();
  stack->close();
  lock.lock();
  std::erase(held_stacks().closing, stack);
}

std::vector<std::shared_ptr<Stack>> live_stacks() {
  std::lock_guard lock(held_stacks().mutex);
  std::vector<std::shared_ptr<Stack>> stacks;
  for (const auto& user : held_stacks().users) {
    if (std::ranges::count(stacks, user.stack) == 0) stacks.push_back(user.stack);
  }
  return stacks;
}

}  // namespace taco::harp
