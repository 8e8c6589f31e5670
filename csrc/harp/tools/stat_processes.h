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

// Engines; and, one line each, why others are not shown.
struct Everything {
  std::vector<Look> looks;
  std::vector<std::string> problems;
  void add(Everything&& more);
};

// The engines of one process, each once however many descriptors it has for the page; the first few
// hundred where it has more. An error's text names the process and says what to do: it is not
// there, it belongs to somebody else, it has no engine, or one with a page of another layout.
Result<Everything> look_at(pid_t pid);

// The engines of all processes that this user may look into.
Everything look_at_all();

}  // namespace taco::harp::statistics
