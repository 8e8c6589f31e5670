// A request on its way: shared by the program, which waits for its end, and the controller, which
// brings it about.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "base/condition.h"
#include "pg/controller/controller.h"

namespace taco::pg::controller {

class PendingRequest final : public Submission {
 public:
  PendingRequest(int set, Request request, std::shared_ptr<Tensors> tensors, Time submitted)
      : set(set), request(std::move(request)), tensors(std::move(tensors)), submitted(submitted) {}

  // Submission: any thread.
  bool done() const override { return done_.load(std::memory_order_acquire); }
  const Outcome& outcome() const override { return outcome_; }
  bool wait_until(Time until) override;

  // The controller's thread, once. Nothing of the tensors is touched afterwards.
  void end(Outcome outcome);
  // "allreduce 'grad.3'"
  std::string describe() const;

  const int set;
  const Request request;
  std::shared_ptr<Tensors> tensors;  // the controller's, until the end
  const Time submitted;
  bool agreed = false;  // the controller's: all ranks have it

 private:
  Outcome outcome_;  // published by done_
  std::atomic<bool> done_{false};
  std::mutex mutex_;
  Condition ended_;
};
using PendingPtr = std::shared_ptr<PendingRequest>;

}  // namespace taco::pg::controller
