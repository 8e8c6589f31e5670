// Letters for the controller's thread: operations that have ended, which engines tell, and calls of
// the program's threads. Any thread posts, one thread reads and sleeps. While it waits for an
// operation it sleeps as one who waits for the engine, and drives that while nobody else does: a
// small operation then costs no switch of threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "base/clock.h"
#include "base/condition.h"
#include "harp/engine/stack.h"

namespace taco::pg::controller {

class Inbox {
 public:
  using Letter = std::function<void()>;

  // `stack` is null where nothing is sent.
  explicit Inbox(std::shared_ptr<harp::Stack> stack) : stack_(std::move(stack)) {}
  Inbox(const Inbox&) = delete;
  Inbox& operator=(const Inbox&) = delete;

  // Any thread, an engine's too, which it does not hold up.
  void post(Letter letter);
  void wake() { post(nullptr); }

  // The reader's: calls what has come, in the order in which it came. Returns how many.
  std::size_t read();
  // Sleeps until something comes, or that time. `drives`: as one who waits for the engine. False:
  // the transport has stopped, and no operation will end any more.
  bool sleep(Time until, bool drives);
  // How often the reader has gone to sleep.
  std::uint64_t sleeps() const { return sleeps_.load(std::memory_order_relaxed); }

 private:
  void doze(Time until);

  const std::shared_ptr<harp::Stack> stack_;
  std::atomic<std::uint64_t> sleeps_{0};
  std::mutex mutex_;  // guards what follows
  Condition posted_;
  std::vector<Letter> letters_;
  std::shared_ptr<harp::Event> sleeper_;  // of a reader that waits for the engine
  std::vector<Letter> reading_;           // the reader's
};

}  // namespace taco::pg::controller
