#include "pg/c10d/work.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

#include <mutex>

#include "base/condition.h"
#include "base/far_future.h"
#include "base/heed.h"
#include "edge/errors.h"
#include "edge/signals.h"
#include "pg/c10d/relay.h"
#include "pg/communicator.h"

namespace taco::pg {
namespace {

// As Future::wait() does, which is compiled from torch's header with a std::condition_variable
// (base/condition.h says what that costs).
void wait_for_completion(c10::ivalue::Future& future) {
  std::mutex mutex;
  Condition changed;
  bool completed = false;
  future.addCallback(
      [&](c10::ivalue::Future&) {
        std::lock_guard lock(mutex);
        completed = true;
        changed.notify_one();
      },
      /*uses_future=*/false);
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return completed; });
}

}  // namespace

std::uint64_t WorkState::next_key() {
  static std::atomic<std::uint64_t> newest{0};
  return newest.fetch_add(1, std::memory_order_relaxed) + 1;
}

bool WorkState::operations_done() const {
  for (const OperationPtr& operation : operations) {
    if (!operation->done()) return false;
  }
  for (const auto& child : children) {
    if (!child->operations_done()) return false;
  }
  return true;
}

void WorkState::complete() {
  if (stage_.load(std::memory_order_acquire) == Stage::kDone) return;
  for (const auto& child : children) child->complete();
  std::vector<at::Tensor> dropped;  // outside the lock: their end may need the GIL
  std::function<void()> ended;      // and so may the end of what it holds
  FuturePtr future, outcome;
  bool mine = false;
  {
    std::lock_guard lock(mutex_);
    mine = stage_.load(std::memory_order_relaxed) == Stage::kOpen;
    if (mine) {
      finish_operations();
      dropped.swap(kept);
      ended.swap(at_end);
      stage_.store(Stage::kCompleted, std::memory_order_release);
    }
    future = future_;
    outcome = outcome_;
  }
  if (mine) {
    complete_futures(future, outcome);
    stage_.store(Stage::kDone, std::memory_order_release);
    return;
  }
  // Another thread is completing it, and runs no callbacks but those that C++ code has attached.
  for (const FuturePtr& one : {future, outcome})
    if (one) wait_for_completion(*one);
}

void WorkState::finish_operations() {
  std::exception_ptr first;
  for (const auto& child : children)
    if (!first) first = child->error();
  for (const OperationPtr& operation : operations) {
    if (first) break;
    if (Status status = operation->status(); !status.ok()) first = exception_of(status);
  }
  if (!first && (!copy_backs.empty() || at_end)) {
    try {
      at::AutoDispatchBelowADInplaceOrView no_autograd;
      for (CopyBack& copy : copy_backs) copy.target.copy_(copy.staged);
      if (at_end) at_end();
    } catch (...) {
      first = std::current_exception();
    }
  }
  error_ = first;
  for (CopyBack& copy : copy_backs) {
    kept.push_back(std::move(copy.staged));
    kept.push_back(std::move(copy.target));
  }
  copy_backs.clear();
}

// Callbacks that C++ has attached run in here, on this thread but in no callback's scope.
void WorkState::complete_futures(const FuturePtr& future, const FuturePtr& outcome) const {
  const CallbackScope::Entry no_scope(nullptr);
  if (future && error_) future->setError(error_);
  if (future && !error_) future->markCompleted(c10::IValue(results));
  if (!outcome) return;
  const auto result = error_ ? c10d::WorkResult::COMM_ERROR : c10d::WorkResult::SUCCESS;
  outcome->markCompleted(c10::IValue(static_cast<int64_t>(result)));
}

WorkState::FuturePtr WorkState::promise(FuturePtr WorkState::*which, c10::TypePtr type) {
  FuturePtr made;
  {
    std::lock_guard lock(mutex_);
    if (this->*which) return this->*which;
    made = this->*which = c10::make_intrusive<c10::ivalue::Future>(std::move(type));
    if (completed()) {  // whoever completed it did not know of this one; nobody else does yet
      complete_futures(which == &WorkState::future_ ? made : nullptr,
                       which == &WorkState::outcome_ ? made : nullptr);
      return made;
    }
  }
  on_complete([] {});
  return made;
}

WorkState::FuturePtr WorkState::future() {
  return promise(&WorkState::future_, c10::ListType::create(c10::TensorType::get()));
}

WorkState::FuturePtr WorkState::outcome() {
  return promise(&WorkState::outcome_, c10::IntType::get());
}

Status WorkState::wait(Duration timeout, Time deadline) {
  if (stage_.load(std::memory_order_acquire) == Stage::kDone) return Status();
  for (const OperationPtr& operation : operations) {
    if (operation->done()) continue;
    Status status = operation->wait(timeout, deadline);
    if (!status.ok() && !operation->done()) return status;
  }
  for (const auto& child : children) {
    TACO_RETURN_IF_ERROR(child->wait(timeout, deadline));
  }
  complete();
  return Status();
}

bool WorkState::wait_until(Time until) {
  for (const OperationPtr& operation : operations) {
    if (!operation->done() && !operation->wait_until(until)) return false;
  }
  for (const auto& child : children) {
    if (!child->wait_until(until)) return false;
  }
  return true;
}

void WorkState::wait_and_hear_signals(Time deadline) {
  (void)hear_signals_during(
      [&] { return wait_and_heed(deadline, [this](Time until) { return wait_until(until); }); });
}

void WorkState::on_complete(std::function<void()> callback) {
  std::vector<OperationPtr> all = operations;
  for (const auto& child : children) {
    all.insert(all.end(), child->operations.begin(), child->operations.end());
  }
  if (all.empty()) {
    complete();
    callback();
    return;
  }
  auto left = std::make_shared<std::atomic<std::size_t>>(all.size());
  auto last = [self = shared_from_this(), left, callback = std::move(callback)] {
    if (left->fetch_sub(1) != 1) return;
    self->complete();
    callback();
  };
  for (const OperationPtr& operation : all) operation->on_complete(last);
}

std::exception_ptr WorkState::error() const {
  std::lock_guard lock(mutex_);
  return error_;
}

Work::Work(int rank, c10d::OpType type, const char* title,
           const std::optional<std::vector<at::Tensor>>& inputs, WorkStatePtr state,
           std::shared_ptr<Communicator> communicator, std::shared_ptr<NestedGroups> nested)
    : c10d::Work(rank, type, title, inputs),
      state_(std::move(state)),
      communicator_(communicator),
      nested_(nested),
      group_(communicator->options().id) {}

Work::~Work() {
  // Dropped before it was done: the tensors stay, and staged results still reach them.
  if (!state_->completed()) state_->on_complete([] {});
}

// Ends the profiler's event, if there is one.
void Work::finish_once() {
  if (!finished_.exchange(true)) finish(state_->error());
}

bool Work::isCompleted() {
  if (!state_->operations_done()) return false;
  state_->complete();
  finish_once();
  return true;
}

bool Work::isSuccess() const { return state_->completed() && !state_->error(); }

std::exception_ptr Work::exception() const {
  return state_->completed() ? state_->error() : nullptr;
}

int Work::sourceRank() const {
  return state_->operations.empty() ? -1 : state_->operations.front()->source_rank();
}

std::vector<at::Tensor> Work::result() { return state_->results; }

void Work::synchronize() { wait(kNoTimeout); }

bool Work::wait(std::chrono::milliseconds timeout) {
  // -1 (kUnsetTimeout) and 0 (kNoTimeout) leave the operation its own deadline.
  const Duration limit = timeout.count() > 0 ? from_milliseconds(timeout.count()) : 0;
  const Time deadline = limit > 0 ? later(monotonic_now(), limit) : kNever;
  if (!state_->operations_done()) state_->wait_and_hear_signals(deadline);
  raise_if_error(state_->wait(limit, deadline));
  TORCH_INTERNAL_ASSERT(state_->operations_done(), "taco: a wait() returned before its end");
  finish_once();
  if (std::exception_ptr error = state_->error()) std::rethrow_exception(error);
  return true;
}

void Work::abort() {
  if (auto communicator = communicator_.lock()) {
    communicator->abort(Status(Code::kAborted, "a Work of this group was aborted by its user"));
  }
}

// The future holds the state, not the Work: it lives as long as the user wants it.
c10::intrusive_ptr<c10::ivalue::Future> Work::getFuture() { return state_->future(); }

c10::intrusive_ptr<c10::ivalue::Future> Work::getFutureResult() { return state_->outcome(); }

std::shared_ptr<CallbackScope> Work::scope() {
  // Point-to-point operations, batches of them too, have no number that all ranks share.
  const OperationPtr* operation = nullptr;
  const auto look = [&operation](const WorkState& state) {
    for (const OperationPtr& one : state.operations)
      if (operation == nullptr && !one->is_point_to_point()) operation = &one;
  };
  look(*state_);
  for (const auto& child : state_->children) look(*child);
  std::lock_guard lock(scope_mutex_);
  if (auto nested = nested_.lock(); nested && operation && !scope_) {
    scope_ = std::make_shared<CallbackScope>(nested, group_, (*operation)->sequence());
  }
  return scope_;
}

float Work::getDuration() const {
  Duration longest = 0;
  for (const OperationPtr& operation : state_->operations) {
    longest = std::max(longest, operation->elapsed());
  }
  return static_cast<float>(longest) / kMillisecond;
}

uint64_t Work::getSequencenumber() const {
  return state_->operations.empty() ? 0 : state_->operations.front()->sequence();
}

}  // namespace taco::pg
