// The Work that c10d holds while a collective runs. WorkState owns everything the engine may touch
// (tensors, staged copies) and outlives the Work that the user sees: a Work that is dropped early
// still completes, and its memory stays until then.
//
// The first to find the operations done completes the Work: a waiter, is_completed(), or the
// completion thread. Torch relies on a Work that says it is complete having its future done, so all
// others wait for that one, which between the claim and the futures' completion waits for nobody.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "base/far_future.h"
#include "pg/c10d/callback_scope.h"
#include "pg/operation.h"

namespace taco::pg {

// torch's timeouts; 0: there is none.
inline Duration to_duration(std::chrono::milliseconds timeout) {
  return timeout.count() > 0 ? from_milliseconds(timeout.count()) : 0;
}

struct CopyBack {
  at::Tensor staged;  // what the engine wrote
  at::Tensor target;  // the user's tensor, of any layout
};

class WorkState : public std::enable_shared_from_this<WorkState> {
 public:
  using FuturePtr = c10::intrusive_ptr<c10::ivalue::Future>;

  std::vector<OperationPtr> operations;
  std::vector<at::Tensor> kept;  // their memory is in the operations' hands
  std::vector<CopyBack> copy_backs;
  std::function<void()> at_end;  // makes the results of what the operations have brought; may raise
  std::vector<at::Tensor> results;                   // the future's value
  std::vector<std::shared_ptr<WorkState>> children;  // of a coalesced Work
  const std::uint64_t key = next_key();              // no other's of this process, ever

  bool operations_done() const;
  bool completed() const { return stage_.load(std::memory_order_acquire) != Stage::kOpen; }
  // Once the operations are done: copies staged results to their tensors and completes the futures.
  // Any thread, idempotent; when it returns, the futures are done. Callbacks that Python has
  // attached to them run later, on a completion thread (relay.h).
  void complete();
  // Drives the engine until done, then completes it. kTimeout when `timeout` passes first; 0: no
  // limit.
  Status wait(Duration timeout) {
    return wait(timeout, timeout > 0 ? later(monotonic_now(), timeout) : kNever);
  }
  Status wait(Duration timeout, Time deadline);  // which is that long after the wait began
  // True: there is nothing more to wait for.
  bool wait_until(Time until);
  // Returns when there is nothing more to wait for, or at the deadline. On Python's main thread its
  // handlers of signals run meanwhile, and what one raises comes out of here: the operations go on.
  void wait_and_hear_signals(Time deadline);
  // Calls back on the completion thread when all is done and completed.
  void on_complete(std::function<void()> callback);
  std::exception_ptr error() const;  // valid once completed; null: success

  // The future of the results; and that of their c10d::WorkResult. Done once this is completed.
  FuturePtr future();
  FuturePtr outcome();

 private:
  enum class Stage : std::uint8_t { kOpen, kCompleted, kDone };  // kDone: the futures are, too

  static std::uint64_t next_key();
  void finish_operations();  // with the lock held
  void complete_futures(const FuturePtr& future, const FuturePtr& outcome) const;
  FuturePtr promise(FuturePtr WorkState::*which, c10::TypePtr type);

  mutable std::mutex mutex_;  // guards what follows, until completed
  std::atomic<Stage> stage_{Stage::kOpen};
  std::exception_ptr error_;
  FuturePtr future_, outcome_;
};
using WorkStatePtr = std::shared_ptr<WorkState>;

class Work : public c10d::Work {
 public:
  // `communicator` runs the operations; `nested` takes what their callbacks start.
  Work(int rank, c10d::OpType type, const char* title,
       const std::optional<std::vector<at::Tensor>>& inputs, WorkStatePtr state,
       std::shared_ptr<Communicator> communicator, std::shared_ptr<NestedGroups> nested);
  ~Work() override;

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  int sourceRank() const override;
  std::vector<at::Tensor> result() override;
  void synchronize() override;
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void abort() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override;
  float getDuration() const override;
  uint64_t getSequencenumber() const override;
  // NOLINTNEXTLINE(readability-identifier-naming): its name is torch's
  uint64_t getCompletionKey() const { return state_->key; }  // torch asks from 2.15 on

  const WorkStatePtr& state() const { return state_; }
  // Where collectives that callbacks of this Work start belong; null for point-to-point.
  std::shared_ptr<CallbackScope> scope();

 private:
  void finish_once();

  WorkStatePtr state_;
  std::weak_ptr<Communicator> communicator_;
  std::weak_ptr<NestedGroups> nested_;
  std::uint64_t group_;
  std::mutex scope_mutex_;
  std::shared_ptr<CallbackScope> scope_;
  std::atomic<bool> finished_{false};
};

}  // namespace taco::pg
