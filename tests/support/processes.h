// Real processes for tests: forks one a rank, lets them rendezvous through the parent, ends what is
// left when the deadline passes. The test process itself must have no Stack when it forks.
#pragma once

#include <gtest/gtest.h>
#include <sys/types.h>
#include <unistd.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

namespace taco::testing {

// A child's knowledge about its fellows.
class Fellowship {
 public:
  Fellowship(int rank, int world, int fd) : rank_(rank), world_(world), fd_(fd) {}
  int rank() const { return rank_; }
  int world() const { return world_; }
  // Everybody's contribution, by rank. Ranks that have ended are not waited for and give "".
  std::vector<std::string> all_gather(const std::string& own);
  void barrier() { all_gather(""); }

 private:
  const int rank_, world_, fd_;
};

struct ProcessOptions {
  int count = 2;
  Duration deadline = 60 * kSecond;
  // Network namespace of each rank (see network.h); empty: the caller's.
  std::vector<std::string> namespaces;
};

// Runs `body` in `count` processes and returns their wait statuses by rank: 0 when the body
// returned without a GoogleTest failure, WTERMSIG for a kill, and a kill by the deadline is
// reported as a failure of the calling test.
std::vector<int> run_processes(const ProcessOptions& options,
                               const std::function<void(Fellowship&)>& body);

// In such a process: what it cannot go on without, or its end.
inline void require_ok(const Status& status) {
  EXPECT_TRUE(status.ok()) << status.message();
  if (!status.ok()) _exit(1);
}

template <class Value>
Value require(Result<Value> result) {
  require_ok(result.status());
  return std::move(result).value();
}

// Descriptors and threads of this process, for leak tests.
int count_descriptors();
int count_threads();
std::string thread_names();  // of all, separated by spaces
double processor_seconds();  // of this process so far

}  // namespace taco::testing
