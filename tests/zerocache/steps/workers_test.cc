#include "zerocache/steps/workers.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <vector>

namespace taco::zerocache {
namespace {

std::unique_ptr<Workers> started(unsigned threads) {
  auto workers = Workers::start(threads, "taco-test");
  EXPECT_TRUE(workers.ok()) << workers.status().message();
  return std::move(workers).value();
}

TEST(Workers, EachWorksOnceAndAllAreDoneAfterwards) {
  for (const unsigned threads : {0u, 1u, 2u, 7u}) {
    const auto workers = started(threads);
    EXPECT_EQ(workers->count(), std::max(threads, 1u));
    std::vector<int> times(workers->count());
    for (int round = 1; round <= 200; ++round) {
      workers->run([&](unsigned index) { ++times[index]; });
      for (const int each : times) ASSERT_EQ(each, round);
    }
  }
}

TEST(Workers, TheirEndInAForkedChildHarmsNobody) {
  auto workers = started(3);
  const pid_t child = fork();
  if (child == 0) {
    workers.reset();
    _exit(0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  std::atomic<int> worked = 0;
  workers->run([&](unsigned) { ++worked; });
  EXPECT_EQ(worked, 3);
}

}  // namespace
}  // namespace taco::zerocache
