// Runs the callbacks of completed operations, away from every engine: a callback may start
// operations and wait for them. One thread for the whole process, made when the first callback is
// posted; while callbacks are blocked (each for more than 2 ms) one more thread at a time joins in,
// up to kMaxThreads, so that nested waits of any depth make progress. Callbacks start in the order
// in which they were posted.
//
// Any thread may post. An object that has callbacks run, as a group does, is a user; when the last
// one leaves, the threads end and are joined.
#pragma once

#include <functional>

namespace taco::completion {

inline constexpr int kMaxThreads = 64;

void post(std::function<void()> callback);

// True on the threads that run callbacks.
bool on_completion_thread();

// Around a wait inside a callback: says at once that this thread is blocked.
class Blocked {
 public:
  Blocked();
  ~Blocked();
  Blocked(const Blocked&) = delete;
  Blocked& operator=(const Blocked&) = delete;

 private:
  bool counted_;
};

void add_user();
// When the last user leaves, the threads end once their queue is empty, and are joined, except the
// calling one (if a callback leaves) and those whose callback is blocked for more than a second.
// Not to be called with a lock (the GIL) that callbacks need.
void remove_user();
// Joins what remove_user() could not, under the same conditions; nothing while there are users. For
// the process's exit.
void join();

int threads();  // not joined yet

}  // namespace taco::completion
