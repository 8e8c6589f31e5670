// Runs the callbacks of completed operations, away from every engine: a callback may start
// operations and wait for them. One thread for the whole process, made when the first callback is
// posted; while callbacks are blocked (each for more than 2 ms) one more thread at a time joins in,
// up to kMaxThreads, so that nested waits of any depth make progress. Callbacks start in the order
// in which they were posted.
//
// Any thread may post. Groups hold a User each; when the last one leaves, the threads end.
#pragma once

#include <functional>

namespace taco::pg::completion {

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
// The last user's leaving ends the threads once their queue is empty and waits for that, at most a
// second: a callback that is blocked for longer ends its thread later. Not to be called with a lock
// (the GIL) that callbacks need.
void remove_user();

int threads();  // alive now

}  // namespace taco::pg::completion
