// Named operations of a group's ranks, started when all ranks of a process set have submitted them:
// Horovod's contract. One thread ("taco-controller") per Controller drives the rounds of all its
// process sets (pg/controller/negotiation.h), starts what they agree on, and sleeps while nothing
// is pending. A process set has two groups of its own, made of the members' processes without a
// store: one for rounds, one for data. The program's own group runs none of it.
//
// Whoever makes a Controller owns it, and shuts it down before the group that it belongs to: what
// others have agreed on with this rank still needs it. Ranks make their controllers in one order.
//
// A forked child has a copy without the thread: every call says so, and its end does nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "pg/controller/listener.h"
#include "pg/controller/request.h"
#include "pg/group/nested_groups.h"
#include "pg/operation.h"

namespace taco::pg::controller {

struct ControllerOptions {
  int rank = 0, world = 1;
  std::uint64_t group = 0;  // the parent's id, from which those of all its groups are derived
  std::uint64_t fusion_bytes = 64 << 20;
  Duration cycle_time = kMillisecond;  // between two rounds of which the first brought nothing
  std::size_t cache_slots = 1024;
  Duration stall_warning = 60 * kSecond;  // 0: none
  Duration stall_shutdown = 0;            // 0: never
  // The group's. A shutdown waits no longer for data that moves to no end; nothing else needs it.
  Duration timeout = 1800 * kSecond;
};

// kAborted: what every call says in a forked child.
Status left_in_parent();

// The memory of one request's tensors. Asked for on the controller's thread, once, when the request
// starts to run: it stays there until the controller lets go of it, when the request ends. What
// these functions throw ends the controller, as a failure that they return does.
class Tensors {
 public:
  virtual ~Tensors() = default;
  virtual std::vector<Piece> inputs() = 0;  // each contiguous, and as large as its shape says
  // The output for tensor t, of this shape. Its size is known by then.
  virtual Result<Piece> output(std::size_t tensor, const Shape& shape) = 0;
};

struct Outcome {
  Status status;
  std::vector<std::int64_t> received_splits;  // kAllToAll: rows from each rank
  int last_joined = -1;                       // kJoin
  int set = -1;                               // kAddSet
};

// A submitted request, shared by whoever waits and the controller.
class Submission {
 public:
  virtual ~Submission() = default;
  // Also in a forked child, where it will never end.
  virtual bool done() const = 0;
  virtual const Outcome& outcome() const = 0;  // valid once done()
  virtual bool wait_until(Time until) = 0;     // true: done. Without the GIL, any thread
};

class Controller {
 public:
  static Result<std::unique_ptr<Controller>> start(std::shared_ptr<NestedGroups> groups,
                                                   ControllerOptions options);
  virtual ~Controller() = default;

  // Any thread, never blocks. kInvalidArgument: unknown set, a name that is pending, this rank is
  // not of the set. kAborted, kPeerLost: why the controller has ended. `set` 0 is the global one.
  // `tensors` may be null for kinds that move no data.
  virtual Result<std::shared_ptr<Submission>> submit(int set, Request request,
                                                     std::shared_ptr<Tensors> tensors) = 0;
  // Global ranks, sorted; empty: unknown. As the next two, any thread; they fail in a forked child.
  virtual Result<std::vector<int>> ranks_of(int set) const = 0;
  virtual Result<std::vector<int>> sets() const = 0;
  virtual Status set_listener(std::shared_ptr<Listener> listener) = 0;  // null: none
  // How often its thread has gone to sleep: the count stands still while nothing is pending.
  virtual std::uint64_t sleeps() const = 0;
  // Ends pending requests here and at the others with kAborted, and joins the thread. Idempotent.
  // What all ranks have agreed on before runs to its end, unless nothing moves for the timeout.
  virtual void shutdown() = 0;
};

}  // namespace taco::pg::controller
