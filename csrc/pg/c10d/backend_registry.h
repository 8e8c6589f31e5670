// The backends that must be shut down when the interpreter leaves with work pending. Any thread.
#pragma once

#include <c10/util/intrusive_ptr.h>

namespace taco::pg {

class Backend;

void add_live(const c10::intrusive_ptr<Backend>& backend);
// From atexit, without the GIL: ends every group, so that no callback meets a dead interpreter.
void shut_down_all();

}  // namespace taco::pg
