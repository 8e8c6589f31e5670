// Finds the engines of other processes by their pages of statistics: memfds of one name among the
// descriptors in /proc. Any thread; nothing is kept between calls.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "harp/stat/stat_page.h"

namespace taco::harp::statistics {

// An engine as it stood when it was looked at.
struct Look {
  pid_t pid = 0;
  std::string program;         // the name that the kernel has for the process
  int engine = 0;              // its number among those of the process
  std::uint64_t identity = 0;  // the same at every look at this engine
  Time seen = 0;
  About about;
  State state;
};

// All engines of one process. An error's text names the process and says what to do: it is not
// there, it belongs to somebody else, it has no engine, or one with a page of another layout.
Result<std::vector<Look>> look_at(pid_t pid);

// The engines of all processes that this user may look into; and, one line each, why one of them
// that has an engine cannot be shown.
struct Everything {
  std::vector<Look> looks;
  std::vector<std::string> problems;
};
Everything look_at_all();

}  // namespace taco::harp::statistics
