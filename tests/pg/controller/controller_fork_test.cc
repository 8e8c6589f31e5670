// A forked child has a copy of its parent's controller, and no thread that does anything: every
// call says so at once, whatever lock the parent held, and the end of the copy ends.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <thread>

#include "support/controller_ranks.h"

namespace taco::pg::controller {
namespace {

using testing::add_set;
using testing::ControllerRanks;
using testing::request_of;
using testing::says;
using testing::submit;
using testing::Submitted;
using testing::sum_floats;

// How a child that runs `body` ends: 0 where that returns true. One that waits for ever is killed.
template <class Body>
int end_of_child(const Body& body) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    _exit(body() ? 0 : 1);
  }
  int status = -1;
  return waitpid(child, &status, 0) == child ? status : -1;
}

bool is_refused(const Status& status) {
  return bool(says(status, Code::kAborted, {"forked", "stayed there"}));
}

TEST(ControllerFork, EveryCallInAChildSaysSoAtOnce) {
  ControllerRanks ranks({.world = 2});
  Controller& to = ranks.at(0);
  std::atomic<bool> stops{false};
  // Holds the controller's lock more often than not.
  std::thread busy([&] {
    while (!stops) EXPECT_TRUE(to.ranks_of(0).ok());
  });
  for (int turn = 0; turn < 20; ++turn) {
    EXPECT_EQ(end_of_child([&] {
                return is_refused(to.ranks_of(0).status()) && is_refused(to.sets().status()) &&
                       is_refused(to.set_listener(nullptr)) &&
                       is_refused(sum_floats(to, "x", {1}).refusal) &&
                       is_refused(add_set(to, {0}).refusal);
              }),
              0);
  }
  stops = true;
  busy.join();
  ranks.run([](int, Controller& each) { EXPECT_TRUE(sum_floats(each, "x", {1}).wait().ok()); });
}

TEST(ControllerFork, ARequestThatIsPendingHasEndedForAChild) {
  ControllerRanks ranks({.world = 2});
  const Submitted done = sum_floats(ranks.at(0), "done", {1});
  EXPECT_TRUE(sum_floats(ranks.at(1), "done", {1}).wait().ok());
  EXPECT_TRUE(done.wait().ok());
  Submitted pending = sum_floats(ranks.at(0), "x", {1});
  std::thread waits([&] { EXPECT_TRUE(pending.wait().ok()); });
  EXPECT_EQ(end_of_child([&] {
              const bool told = pending.submission->done() &&
                                pending.submission->wait_until(kNever) &&
                                is_refused(pending.submission->outcome().status);
              pending.submission.reset();  // while a thread of the parent waits for it
              return told && done.submission->outcome().status.ok();
            }),
            0);
  EXPECT_TRUE(sum_floats(ranks.at(1), "x", {1}).wait().ok());
  waits.join();
}

// The parent's thread sleeps in it, or is at work, and none of that is in the child.
TEST(ControllerFork, ACopyEndsInAChildAndTheParentsGoesOn) {
  for (const int world : {1, 2}) {
    ControllerRanks ranks({.world = world});
    const auto step = [](int, Controller& to) {
      EXPECT_TRUE(sum_floats(to, "x", {1}).wait().ok());
    };
    ranks.run(step);
    EXPECT_EQ(end_of_child([&] {
                ranks.at(0).shutdown();
                delete &ranks.at(0);
                return true;
              }),
              0);
    ranks.run(step);
  }
}

}  // namespace
}  // namespace taco::pg::controller
