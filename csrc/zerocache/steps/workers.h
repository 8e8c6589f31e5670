// Threads that share one piece of work after the other with their caller.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "base/status.h"

namespace taco::zerocache {

class Workers {
 public:
  // `threads` work in all, the caller among them; 0 counts as 1. kResource if one cannot be made.
  static Result<std::unique_ptr<Workers>> start(unsigned threads, const char* name);
  // In a forked child, which has none of the threads, it does nothing.
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  unsigned count() const;
  // work(0) here and work(1) to work(count() - 1) on the others; returns when all have. One thread
  // at a time calls this, and none in a forked child.
  void run(const std::function<void(unsigned)>& work);

 private:
  struct State;
  explicit Workers(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace taco::zerocache
