// What belongs to the process and not to a group: who uses the Stack, and which backends must be
// shut down when the interpreter leaves with work pending. Any thread.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <memory>

#include "base/status.h"
#include "harp/engine/stack.h"

namespace taco::pg {

class Backend;

// The process's Stack, with one more user. drop_stack() of the last user closes it: goodbye,
// linger, threads joined.
Result<std::shared_ptr<harp::Stack>> hold_stack(const harp::StackOptions& options);
void drop_stack(const std::shared_ptr<harp::Stack>& stack);
std::shared_ptr<harp::Stack> current_stack();  // null when nobody uses one

void add_live(const c10::intrusive_ptr<Backend>& backend);
// From atexit, without the GIL: ends every group, so that no callback meets a dead interpreter.
void shut_down_all();

}  // namespace taco::pg
