#include "base/per_process.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <latch>
#include <mutex>
#include <thread>
#include <utility>

#include "base/env.h"
#include "base/timeline.h"

namespace taco {
namespace {

struct Counted {
  std::mutex mutex;
  int count = 0;
};

// Whether a forked child ends well, and in time.
bool succeeds_in_child(const std::function<bool()>& task) {
  constexpr unsigned kLimitSeconds = 20;
  const pid_t child = fork();
  if (child == 0) {
    alarm(kLimitSeconds);
    _exit(task() ? 0 : 1);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST(PerProcess, IsTheSameToAllThreads) {
  static constinit PerProcess<Counted> counted;
  Counted* other = nullptr;
  std::thread([&] { other = &counted(); }).join();
  EXPECT_EQ(&counted(), other);
}

TEST(PerProcess, BeginsAnewInAForkedChildThatFoundItLocked) {
  static constinit PerProcess<Counted> counted;
  std::latch is_locked(1), is_over(1);
  std::thread holder([&] {
    std::lock_guard lock(counted().mutex);
    counted().count = 3;
    is_locked.count_down();
    is_over.wait();
  });
  is_locked.wait();
  EXPECT_TRUE(succeeds_in_child([] {
    std::lock_guard lock(counted().mutex);
    return std::exchange(counted().count, 4) == 0 && counted().count == 4;
  }));
  is_over.count_down();
  holder.join();
  EXPECT_EQ(counted().count, 3);
}

// A forked child may allocate nothing under TSan; under ASan one can find the allocator locked.
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
// Another thread uses it all the time, so that a fork hardly ever finds its lock free.
void expect_forks_find_it_usable(const std::function<bool()>& use) {
  constexpr int kForks = 20;
  std::atomic<bool> is_over{false};
  std::latch is_used(1);
  std::thread user([&] {
    use();
    for (is_used.count_down(); !is_over.load();) use();
  });
  is_used.wait();
  int good = 0;
  while (good < kForks && succeeds_in_child(use)) ++good;
  EXPECT_EQ(good, kForks);
  is_over.store(true);
  user.join();
}

TEST(PerProcess, SettingsCanBeReadInAForkedChild) {
  expect_forks_find_it_usable([] { return Env::get().ok(); });
}

TEST(PerProcess, TheTimelineCanBeWrittenInAForkedChild) {
  expect_forks_find_it_usable([] {
    timeline::enable(true);
    timeline::add({"operation", "track", 0, 0, 1, ""});
    return !timeline::chrome_json().empty();
  });
  timeline::enable(false);
}
#endif

}  // namespace
}  // namespace taco
