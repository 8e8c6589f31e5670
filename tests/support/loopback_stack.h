// An in-memory network for ranks that are threads of one test: harp::Stack without sockets, shared
// memory or processes. It keeps the promises of transport.h (keyed matching, signatures compared
// before a byte moves, unmatched notices, reliable ordered notices) and breaks nothing else, so
// that a failing test accuses the executor. Delivery is in order, or shuffled by a seed; a large
// send is read as late as its receive allows, so a slice written too early is seen as wrong data.
//
// The network owns the stacks; each stack has one engine thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "harp/engine/stack.h"

namespace taco::testing {

struct LoopbackOptions {
  int processes = 2;
  std::uint64_t seed = 0;         // 0: in order; otherwise every choice is drawn from it
  std::size_t eager_limit = 256;  // sends up to this size complete before they are received
  int processes_per_host = 0;     // 0: all on one host
};

class LoopbackStack;
struct LoopbackState;

class LoopbackNetwork {
 public:
  explicit LoopbackNetwork(const LoopbackOptions& options);
  ~LoopbackNetwork();
  LoopbackNetwork(const LoopbackNetwork&) = delete;
  LoopbackNetwork& operator=(const LoopbackNetwork&) = delete;

  std::shared_ptr<harp::Stack> stack(int process) const;
  // PeerId of a process: the same number everywhere, which a real Stack does not promise.
  static harp::PeerId peer_of(int process) { return static_cast<harp::PeerId>(process + 100); }

  // Any thread. Everyone loses `process`, and it loses everyone, as if its host had gone dark.
  void kill(int process);
  // As kill(), but of a process that nobody has heard from: for all they know it may have left.
  void miss(int process);
  // The two lose each other; the rest of the network goes on.
  void cut(int a, int b);
  // The two are connected anew.
  void mend(int a, int b);
  // From now on nothing from `from` reaches `to`, and neither is told.
  void silence(int from, int to);
  // While held, messages from `from` that have matched receives in `to` are not delivered there;
  // notices are.
  void hold(int from, int to, bool held);
  // The engine of `process` stops turning for `duration`.
  void stall(int process, Duration duration);

  // How many notices `from` has sent to `to` so far.
  std::uint64_t notices(int from, int to) const;
  // How much of what `from` has said to `to` is still to be heard there.
  std::size_t unheard(int from, int to) const;
  // Requests still open anywhere; a test that has ended cleanly leaves 0.
  std::size_t open_requests() const;

 private:
  std::shared_ptr<LoopbackState> state_;
};

}  // namespace taco::testing
