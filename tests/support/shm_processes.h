// Runs a function as several forked processes that know one another's shared-memory addresses.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <functional>
#include <vector>

#include "harp/shm/endpoint.h"

namespace taco::harp {

inline constexpr int kMaxShmProcesses = 8;

// Memory that all of them and the test share.
struct ShmBoard {
  struct Entry {
    ShmAddress address;
    std::atomic<bool> posted{false};
    std::atomic<pid_t> pid{0};
  };
  Entry entries[kMaxShmProcesses];
  std::atomic<int> stage{0};
  std::atomic<std::int64_t> figures[kMaxShmProcesses];

  void post(int rank, const ShmAddress& address);
  ShmAddress await(int rank) const;
  void await_stage(int at_least) const;
};

class ShmProcesses {
 public:
  // The function's failures (EXPECT, ASSERT) become exit status 1; it runs in a child of its own.
  ShmProcesses(int count, const std::function<void(int rank, ShmBoard& board)>& run);
  ~ShmProcesses();  // kills what is left

  ShmBoard& board() { return *board_; }
  pid_t pid(int rank) const { return pids_[rank]; }
  void kill(int rank);
  // Waits until a process that ends itself by SIGKILL has done so.
  bool await_death(int rank);
  // True when every process but the killed ones has ended with success before the deadline.
  bool join(Duration within = 30 * kSecond);

 private:
  ShmBoard* board_;
  std::vector<pid_t> pids_;
  std::vector<bool> killed_;
};

}  // namespace taco::harp
