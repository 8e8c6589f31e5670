// A request on its way: shared by the program, which waits for its end, and the controller, which
// brings it about.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/condition.h"
#include "base/fork.h"
#include "pg/controller/controller.h"

namespace taco::pg::controller {

class PendingRequest final : public Submission {
 public:
  PendingRequest(int set, Request request, std::shared_ptr<Tensors> tensors, Time submitted);
  ~PendingRequest() override;
  PendingRequest(const PendingRequest&) = delete;
  PendingRequest& operator=(const PendingRequest&) = delete;

  // Submission: any thread. A copy in a forked child has ended, as one that stayed in the parent.
  bool done() const override { return has_ended() || is_copy(); }
  const Outcome& outcome() const override;
  bool wait_until(Time until) override;

  // The controller's thread. The memory of the tensors as it is now, of which each has the size
  // that the request says. Whatever the program's callbacks throw is a failure, too; its text names
  // the request.
  Result<std::vector<Piece>> inputs() const;
  Result<Piece> output(std::size_t tensor, const Shape& shape) const;
  // The controller's thread, once. Nothing of the tensors is touched afterwards. Who waits for it
  // sleeps on until tell(): of several that end together it hears at once.
  void end(const Outcome& outcome);
  void tell();
  // "allreduce 'grad.3'"
  std::string describe() const;

  const int set;
  const Request request;
  const Time submitted;
  bool agreed = false;  // the controller's: all ranks have it

 private:
  bool has_ended() const { return done_.load(std::memory_order_acquire); }
  bool is_copy() const { return generation_ != fork_generation(); }

  const std::uint32_t generation_ = fork_generation();
  Outcome outcome_;  // published by done_
  std::atomic<bool> done_{false};
  std::mutex mutex_;
  // A copy in a forked child does not end these: threads that are not there use them.
  union {
    std::shared_ptr<Tensors> tensors_;  // the controller's, until the end
  };
  union {
    Condition ended_;
  };
};
using PendingPtr = std::shared_ptr<PendingRequest>;

}  // namespace taco::pg::controller
