// How many collectives of a group run at a time: those beyond kMax wait in line, in the order of
// their sequence numbers. Engine only; one per group.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "pg/execution/operation_state.h"

namespace taco::pg {

class RunningCollectives {
 public:
  static constexpr int kMax = 64;

  // False: it may run now. True: it stands in line.
  bool queue(OperationState& operation) {
    if (running_ < kMax && head_ == waiting_.size()) return false;
    waiting_.push_back(&operation);
    return true;
  }
  // The one whose turn has come, or null.
  OperationState* next() {
    if (running_ >= kMax || head_ == waiting_.size()) return nullptr;
    OperationState* const operation = waiting_[head_++];
    if (head_ == waiting_.size()) {
      waiting_.clear();
      head_ = 0;
    }
    return operation;
  }
  void started() { ++running_; }
  void ended() { --running_; }
  // Drops the collectives that stand in line from that sequence number on: they never run.
  void drop_from(std::uint64_t sequence) {
    waiting_.erase(waiting_.begin(), waiting_.begin() + static_cast<std::ptrdiff_t>(head_));
    head_ = 0;
    std::erase_if(waiting_, [&](const OperationState* one) { return one->sequence() >= sequence; });
  }

 private:
  int running_ = 0;
  std::vector<OperationState*> waiting_;  // from head_; so that a steady state allocates nothing
  std::size_t head_ = 0;
};

}  // namespace taco::pg
