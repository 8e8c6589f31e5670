// The hang dump: on SIGUSR2 every group says on stderr what it is doing. A thread of its own writes
// it, because a signal handler may neither lock nor allocate, and Python's handlers do not run
// while the interpreter waits for a collective.
//
// Groups share one instance through acquire(); the last one to leave takes the thread and the
// signal handler with it. A program's own handler for the signal is left alone.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <memory>
#include <thread>

namespace taco::pg {

class HangDump {
 public:
  static std::shared_ptr<HangDump> acquire();  // any thread
  HangDump();
  ~HangDump();
  HangDump(const HangDump&) = delete;

 private:
  void run();

  bool installed_ = false;
  std::atomic<bool> stop_{false};
  pid_t owner_;  // a forked child has no thread to join
  std::thread thread_;
};

}  // namespace taco::pg
