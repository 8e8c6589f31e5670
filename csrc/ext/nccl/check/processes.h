// The processes of a check: programs that are started anew, never forked copies, each with its
// part.
#pragma once

#include <string>
#include <vector>

#include "base/clock.h"
#include "ext/nccl/check/checks.h"

namespace harp::nccl::check {

struct Part {
  std::string program;  // that plays a part, given "--rank"
  std::string plugin;
  int table = 0;
  taco::Duration limit = 60 * taco::kSecond;
  // Network namespaces of the processes, in turn; none: this one's.
  std::vector<std::string> namespaces;
};

// Why it failed, by process; "": it did not.
std::string run(const Check& check, const Part& part);

// The other side: what the program does when it is given "--rank". Its exit status.
int play(const std::vector<std::string>& arguments);

}  // namespace harp::nccl::check
