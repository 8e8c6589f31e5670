// What belongs to the process and not to a group: who uses which Stack, and which backends must be
// shut down when the interpreter leaves with work pending. Any thread.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "harp/engine/stack.h"

namespace taco::pg {

class Backend;

// A member of a group, from before it meets the others: torch's name of the group, its size, a
// rank.
struct Member {
  std::string group;
  int world = 1;
  int rank = 0;
  bool operator==(const Member&) const = default;
};

// The process's Stack for one more user. Ranks of one group that are threads of this process get
// one each, since to each other they are peers like any (docs/decisions/0004). Groups that merely
// have the same name and size may get one more than they need.
struct HeldStack {
  std::shared_ptr<harp::Stack> stack;
  bool shares_process = false;  // with another rank of its group
};
Result<HeldStack> hold_stack(const harp::StackOptions& options, const Member& member);
// Balances hold_stack(). The last user's closes the Stack: goodbye, linger, threads joined.
void drop_stack(const std::shared_ptr<harp::Stack>& stack, const Member& member);
std::vector<std::shared_ptr<harp::Stack>> live_stacks();  // that somebody uses

void add_live(const c10::intrusive_ptr<Backend>& backend);
// From atexit, without the GIL: ends every group, so that no callback meets a dead interpreter.
void shut_down_all();

}  // namespace taco::pg
