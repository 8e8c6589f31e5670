#include "edge/signals.h"

#include <pybind11/pybind11.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <memory>

#include "base/fork.h"

namespace py = pybind11;

namespace taco {
namespace {

thread_local int raised_afterwards = 0;

// The kernel is asked once a thread, and again by the thread that a fork has made the main one.
bool is_main_thread() {
  thread_local std::optional<std::uint32_t> asked_in;
  thread_local bool is_main = false;
  if (const std::uint32_t generation = fork_generation(); asked_in != generation) {
    is_main = syscall(SYS_gettid) == getpid();
    asked_in = generation;
  }
  return is_main;
}

// With the GIL: what is raised now is raised by the main thread's next step.
void raise_in_the_next_step() {
  auto raised = std::make_unique<py::error_already_set>();
  const auto again = [](void* kept) {
    const std::unique_ptr<py::error_already_set> error(static_cast<py::error_already_set*>(kept));
    error->restore();
    return -1;
  };
  if (Py_AddPendingCall(again, raised.get()) == 0) {
    (void)raised.release();
  } else {  // Python keeps few such calls
    raised->discard_as_unraisable("a handler of a signal");
  }
}

// Runs those that are due, and throws what one of them raises.
void hear_signals() {
  const py::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() == 0) return;
  if (raised_afterwards == 0) throw py::error_already_set();
  raise_in_the_next_step();
}

}  // namespace

HearsSignals::HearsSignals() {
  if (is_main_thread() && Py_IsInitialized() != 0) heed_.emplace([this] { return hear(); });
}

Status HearsSignals::hear() {
  if (raised_ == nullptr) {
    try {
      hear_signals();
      return Status();
    } catch (...) {
      raised_ = std::current_exception();
    }
  }
  return Status(Code::kAborted, "a handler of a signal ended its wait");
}

void HearsSignals::raise_if_interrupted() const {
  if (raised_ != nullptr) std::rethrow_exception(raised_);
}

RaisedAfterwards::RaisedAfterwards() { ++raised_afterwards; }
RaisedAfterwards::~RaisedAfterwards() { --raised_afterwards; }
bool RaisedAfterwards::is_here() { return raised_afterwards > 0; }

}  // namespace taco
