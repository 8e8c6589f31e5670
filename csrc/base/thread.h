// Threads of the library's own.
#pragma once

#include <functional>
#include <thread>

#include "base/status.h"

namespace taco {

// Runs `body` on a new thread of this name (of which the kernel keeps 15 characters). Signals are
// for the program's own threads, whose calls they interrupt: this one has all of them blocked.
// kResource names the thread that could not be.
Result<std::thread> start_thread(const char* name, std::function<void()> body);

}  // namespace taco
