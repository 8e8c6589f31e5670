// Python runs its handlers of signals, Ctrl-C's among them, on the main thread alone, between two
// of its own steps: a thread that waits in C++ has to let them run, or they come when the wait is
// over.
#pragma once

#include <exception>
#include <optional>

#include "base/heed.h"
#include "base/status.h"

namespace taco {

// While it lives, waits of Python's main thread let handlers run and end when one raises
// (base/heed.h). Then raise_if_interrupted() throws what it has raised, whatever the wait says.
class HearsSignals {
 public:
  HearsSignals();
  void raise_if_interrupted() const;

 private:
  Status hear();

  std::exception_ptr raised_;
  std::optional<Heed> heed_;  // where this thread hears signals
};

// Returns what wait() does, which keeps to Status, or throws what a handler has raised meanwhile.
template <class Wait>
auto hear_signals_during(const Wait& wait) {
  HearsSignals signals;
  auto over = wait();
  signals.raise_if_interrupted();
  return over;
}

// While one lives on this thread, no wait here ends because of a handler: what it raises comes out
// of the program's next step of Python. For waits on memory that others are at work on.
class RaisedAfterwards {
 public:
  RaisedAfterwards();
  ~RaisedAfterwards();
  // Whether this thread waits so: a handler of a signal, if it runs anything.
  static bool is_here();
  RaisedAfterwards(const RaisedAfterwards&) = delete;
  RaisedAfterwards& operator=(const RaisedAfterwards&) = delete;
};

}  // namespace taco
