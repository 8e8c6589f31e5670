// A rank's messages to itself, as batches for all ranks have them and pipelines of a single rank.
// The n-th send under a tag matches the n-th receive under that tag; each waits for the other, and
// a long message is copied in pieces, so that everything else of the engine gets its turn.
//
// Engine only; one per group.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <unordered_map>

#include "base/status.h"
#include "harp/transport.h"
#include "pg/execution/executor.h"
#include "pg/execution/operation_state.h"

namespace taco::pg {

class PointToPointOwner;
struct PointToPointMessage;

class OwnMessages {
 public:
  // `mark`: what operations have for their message meanwhile.
  OwnMessages(PointToPointOwner& owner, const GroupView& group, PointToPointMessage& mark);

  // A send or a receive whose peer is this rank.
  void start_st(OperationState& operation, harp::Transport& transport);
  // Ends the operation with `why`, and the other end of its message if that is being copied.
  void fail_st(OperationState& operation, const Status& why);
  static std::string describe(const OperationState& operation);

 private:
  struct Copy {
    OperationState* send = nullptr;
    OperationState* receive = nullptr;
    std::size_t done = 0;
  };
  using Queues = std::unordered_map<std::uint32_t, std::deque<OperationState*>>;  // by tag

  static OperationState* take(Queues& queues, std::uint32_t tag);
  static bool drop(Queues& queues, const OperationState& operation);
  void match(std::uint32_t tag);
  void refuse(const Copy& copy);
  bool step(Copy& copy);
  void finish(const Copy& copy);
  void end(OperationState& operation, const Status& status);
  static void on_timer(harp::Timer& timer, Time now);

  PointToPointOwner& owner_;
  const GroupView& group_;
  PointToPointMessage& mark_;
  harp::Transport* transport_ = nullptr;
  Queues sends_, receives_;  // that wait; no queue is ever empty
  std::deque<Copy> copies_;
  harp::Timer timer_;  // armed while there are any
};

}  // namespace taco::pg
