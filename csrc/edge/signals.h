// Python runs its handlers of signals, Ctrl-C's among them, on the main thread alone, between two
// of its own steps: a thread that waits in C++ has to let them run, or they come when the wait is
// over.
#pragma once

#include <exception>
#include <optional>

#include "base/heed.h"
#include "base/status.h"

namespace taco {

// Whether Python would run them on this thread. Needs no GIL.
bool hears_signals();

// On such a thread: runs those that are due, and throws what one of them raises. Takes the GIL.
void hear_signals();

// For waits that keep to Status: while it lives, they let handlers run and end when one raises
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

// While one lives on this thread, no wait here ends because of a handler: what it raises comes out
// of the program's next step of Python. For waits on memory that others are at work on.
class RaisedAfterwards {
 public:
  RaisedAfterwards();
  ~RaisedAfterwards();
  RaisedAfterwards(const RaisedAfterwards&) = delete;
  RaisedAfterwards& operator=(const RaisedAfterwards&) = delete;
};

}  // namespace taco
