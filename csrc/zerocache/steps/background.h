// One thread that does one piece of work at a time, beside the thread that gives it that.
#pragma once

#include <functional>
#include <memory>

#include "base/status.h"

namespace taco::zerocache {

class Background {
 public:
  // kResource if the thread cannot be made.
  static Result<std::unique_ptr<Background>> start(const char* name);
  // Waits. In a forked child, which has no such thread, it does nothing.
  ~Background();
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;

  // One thread at a time calls these. In a forked child run() may not be called, and nothing is
  // waited for.
  void run(std::function<void()> work);  // waits for what was given before
  void wait();

 private:
  struct State;
  explicit Background(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace taco::zerocache
