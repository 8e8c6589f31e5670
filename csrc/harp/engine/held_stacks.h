// The Stacks of this process and their users. A group has the engine of its number on every rank,
// and may hold the others beside it (docs/decisions/0014). Ranks of one group that are threads of
// this process get a Stack each, since to each other they are peers like any (docs/decisions/0004);
// all others of an engine share one. Any thread.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "harp/engine/stack.h"

namespace taco::harp {

// A user: a rank of a group, from before their rendezvous. `group` is what the program calls it.
struct Member {
  std::string group;
  int world = 1;
  int rank = 0;
  bool operator==(const Member&) const = default;
};

// The engine of a group: torch counts groups, and names most of them by their number; of any other
// name a digest counts.
int engine_of(std::string_view group, int engines);

// The process's Stack for one more user, on the engine of its group. Groups that merely have the
// same name and size may get one more than they need.
struct HeldStack {
  std::shared_ptr<Stack> stack;
  bool shares_process = false;  // with another rank of its group
};
// With `further`, the engine that comes so many after the group's.
Result<HeldStack> hold_stack(const StackOptions& asked, const Member& member, int further = 0);
// Balances hold_stack(). The last user's closes the Stack: goodbye, linger, threads joined.
void drop_stack(const std::shared_ptr<Stack>& stack, const Member& member);
std::vector<std::shared_ptr<Stack>> live_stacks();  // that somebody uses

}  // namespace taco::harp
