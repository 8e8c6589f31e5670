// Threads of the library's own.
#pragma once

#include <cstdint>
#include <functional>
#include <thread>

#include "base/status.h"

namespace taco {

// Runs `body` on a new thread of this name (of which the kernel keeps 15 characters). Signals are
// for the program's own threads, whose calls they interrupt: this one has all of them blocked.
// kResource names the thread that could not be.
Result<std::thread> start_thread(const char* name, std::function<void()> body);

// For as long as it lives, the thread that made it takes short turns on its core, where the kernel
// lets threads choose (Linux 6.12): when it wakes, or has given its core away, it need not wait for
// those that take longer ones, which go on until the clock ticks. Its share of the core is the
// same. Real-time threads stay as they are.
class ShortTurns {
 public:
  ShortTurns();
  ~ShortTurns();
  ShortTurns(const ShortTurns&) = delete;
  ShortTurns& operator=(const ShortTurns&) = delete;

 private:
  bool changed_ = false;
  std::uint64_t before_ = 0;  // ns
};

}  // namespace taco
