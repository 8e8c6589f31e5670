#include "pg/c10d/backend_sparse.h"

#include <ATen/core/LegacyTypeDispatch.h>

#include <condition_variable>

#include "pg/c10d/backend.h"
#include "pg/c10d/backend_errors.h"
#include "pg/c10d/backend_tensors.h"
#include "pg/execution/completion_thread.h"

namespace taco::pg {
namespace {

// Tells the second step's group from what callbacks of the same operation start.
constexpr std::uint64_t kSecondStep = 0x5bd1e995'7a2c6e3bu;
constexpr int kShapeFields = 5;

// What must be equal on all ranks, after the number of entries, which need not.
at::Tensor shape_of(const at::Tensor& tensor) {
  std::int64_t hash = 17;
  for (std::int64_t size : tensor.sizes()) hash = hash * 1000003 + size;
  at::Tensor shape = at::empty({kShapeFields}, at::kLong);
  auto* field = shape.mutable_data_ptr<std::int64_t>();
  field[0] = tensor._nnz();
  field[1] = tensor.sparse_dim();
  field[2] = tensor.dense_dim();
  field[3] = static_cast<std::int64_t>(tensor.scalar_type());
  field[4] = hash;
  return shape;
}

}  // namespace

// One call. Its steps are driven by completions of other operations.
class SparseAllReduce : public Operation, public std::enable_shared_from_this<SparseAllReduce> {
 public:
  SparseAllReduce(std::shared_ptr<NestedGroups> nested, at::Tensor target, bool average,
                  Duration timeout)
      : nested_(std::move(nested)),
        target_(std::move(target)),
        average_(average),
        timeout_(timeout) {
    indices_ = target_._indices().contiguous();
    values_ = target_._values().contiguous();
  }

  Status begin(Communicator& group) {
    group_ = group.options().id;
    mine_ = shape_of(target_);
    shapes_ = at::empty({group.options().world, kShapeFields}, at::kLong);
    OperationSpec spec;
    spec.kind = Kind::kAllGather;
    spec.dtype = kernels::Dtype::kI64;
    spec.timeout = timeout_;
    spec.inputs = {piece_of(mine_)};
    for (int rank = 0; rank < group.options().world; ++rank) {
      spec.outputs.push_back(piece_of(shapes_[rank]));
    }
    Result<OperationPtr> started = group.start(std::move(spec));
    if (!started.ok()) return started.status();
    first_ = std::move(started).value();
    first_->on_complete([self = shared_from_this()] { self->go_on(); });
    return Status();
  }

  bool done() const override { return done_.load(std::memory_order_acquire); }
  Status status() const override {
    std::lock_guard lock(mutex_);
    return status_;
  }
  Status wait(Duration timeout) override {
    completion::Blocked blocked;
    std::unique_lock lock(mutex_);
    const auto finished = [this] { return done(); };
    if (timeout == 0) {
      changed_.wait(lock, finished);
    } else if (!changed_.wait_for(lock, std::chrono::nanoseconds(timeout), finished)) {
      return Status(Code::kTimeout, "sparse all_reduce: wait Timed out after " +
                                        std::to_string(timeout / kMillisecond) + " ms");
    }
    return status_;
  }
  std::uint64_t sequence() const override { return first_->sequence(); }
  int source_rank() const override { return -1; }
  Duration elapsed() const override { return elapsed_; }
  const char* algorithm() const override { return "sparse"; }
  void on_complete(std::function<void()> callback) override {
    {
      std::lock_guard lock(mutex_);
      if (!done()) {
        callbacks_.push_back(std::move(callback));
        return;
      }
    }
    first_->on_complete(std::move(callback));  // done too: calls back at once, on its own thread
  }

 private:
  void go_on() {
    Status status;
    try {
      status = exchange();
    } catch (const std::exception& error) {  // no memory for what the other ranks have, say
      status = Status(Code::kInternal, std::string("sparse all_reduce: ") + error.what());
    }
    if (!status.ok()) return finish(status);
    for (const OperationPtr& part : {gather_indices_, gather_values_}) {
      part->on_complete([self = shared_from_this()] {
        if (self->parts_left_.fetch_sub(1) == 1) self->add_up();
      });
    }
  }

  Status exchange() {
    TACO_RETURN_IF_ERROR(first_->status());
    const auto rows = shapes_.accessor<std::int64_t, 2>();
    for (int rank = 0; rank < rows.size(0); ++rank) {
      for (int field = 1; field < kShapeFields; ++field) {
        if (rows[rank][field] == mine_[field].item<std::int64_t>()) continue;
        return Status(Code::kMismatch,
                      "sparse all_reduce: shape or dtype differ between this rank (sparse_dim " +
                          std::to_string(target_.sparse_dim()) + ", dense_dim " +
                          std::to_string(target_.dense_dim()) + ") and rank " +
                          std::to_string(rank) + " (sparse_dim " + std::to_string(rows[rank][1]) +
                          ", dense_dim " + std::to_string(rows[rank][2]) + ")");
      }
      const std::int64_t entries = rows[rank][0];
      all_indices_.push_back(at::empty({target_.sparse_dim(), entries}, indices_.options()));
      auto sizes = values_.sizes().vec();
      sizes[0] = entries;
      all_values_.push_back(at::empty(sizes, values_.options()));
    }
    Parent parent = nested_->child_of(group_);
    parent.operation = first_->sequence();
    const std::uint64_t id = NestedGroups::id_of(group_ ^ kSecondStep, first_->sequence());
    Result<std::shared_ptr<Communicator>> opened = nested_->open(id, parent, "/sparse");
    if (!opened.ok()) return opened.status();
    const std::shared_ptr<Communicator> child = std::move(opened).value();
    Status status = gather(*child, indices_, all_indices_, &gather_indices_);
    if (status.ok()) {
      status = gather(*child, values_, all_values_, &gather_values_);
      if (!status.ok()) {
        // Its memory is this object's: what has started ends before the whole does.
        gather_values_ = gather_indices_;
        broken_ = status;
        child->abort(status);
      }
    }
    child->close_when_idle(kSecond);
    return gather_indices_ ? Status() : status;
  }

  Status gather(Communicator& child, const at::Tensor& input,
                const std::vector<at::Tensor>& outputs, OperationPtr* operation) {
    OperationSpec spec;
    spec.kind = Kind::kAllGather;
    spec.dtype = movement_dtype(input.scalar_type());
    spec.timeout = timeout_;
    spec.inputs = {piece_of(input)};
    for (const at::Tensor& output : outputs) spec.outputs.push_back(piece_of(output));
    Result<OperationPtr> started = child.start(std::move(spec));
    if (!started.ok()) return started.status();
    *operation = std::move(started).value();
    return Status();
  }

  void add_up() {
    if (!broken_.ok()) return finish(broken_);
    for (const OperationPtr& part : {gather_indices_, gather_values_}) {
      if (Status status = part->status(); !status.ok()) return finish(status);
    }
    try {
      at::AutoDispatchBelowADInplaceOrView no_autograd;
      at::Tensor sum = at::sparse_coo_tensor(at::cat(all_indices_, 1), at::cat(all_values_, 0),
                                             target_.sizes(), target_.options())
                           .coalesce();
      if (average_) sum.div_(shapes_.size(0));
      target_.copy_(sum);
      finish(Status());
    } catch (const std::exception& error) {
      finish(Status(Code::kInternal, std::string("sparse all_reduce: ") + error.what()));
    }
  }

  void finish(const Status& status) {
    std::vector<std::function<void()>> callbacks;
    {
      std::lock_guard lock(mutex_);
      status_ = status;
      elapsed_ = monotonic_now() - begin_;
      callbacks.swap(callbacks_);
      done_.store(true, std::memory_order_release);
    }
    changed_.notify_all();
    for (auto& callback : callbacks) callback();
  }

  const std::shared_ptr<NestedGroups> nested_;
  std::uint64_t group_ = 0;
  at::Tensor target_, indices_, values_;
  bool average_;
  Duration timeout_;
  Time begin_ = monotonic_now();

  at::Tensor mine_, shapes_;
  OperationPtr first_, gather_indices_, gather_values_;
  std::vector<at::Tensor> all_indices_, all_values_;
  std::atomic<int> parts_left_{2};
  Status broken_;  // the second part could not start

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::atomic<bool> done_{false};
  Status status_;
  Duration elapsed_ = 0;
  std::vector<std::function<void()>> callbacks_;
};

Result<OperationPtr> start_sparse_all_reduce(Communicator& group,
                                             std::shared_ptr<NestedGroups> nested,
                                             const at::Tensor& tensor, bool average,
                                             Duration timeout) {
  auto call = std::make_shared<SparseAllReduce>(std::move(nested), tensor, average, timeout);
  TACO_RETURN_IF_ERROR(call->begin(group));
  return OperationPtr(std::move(call));
}

c10::intrusive_ptr<c10d::Work> Backend::allreduce_sparse(std::vector<at::Tensor>& tensors,
                                                         const c10d::AllreduceOptions& opts) {
  const at::Tensor& tensor = only(tensors, "sparse all_reduce");
  TORCH_CHECK_NOT_IMPLEMENTED(tensor.device().is_cpu() && tensor.layout() == c10::kSparse,
                              "taco: sparse all_reduce takes sparse COO tensors on the CPU, got ",
                              tensor.layout(), " on ", tensor.device());
  const auto op = opts.reduceOp.op_;
  TORCH_CHECK_TYPE(op == c10d::ReduceOp::SUM || op == c10d::ReduceOp::AVG,
                   "taco: sparse all_reduce supports SUM and AVG");
  auto state = std::make_shared<WorkState>();
  state->results = tensors;
  const Duration timeout = opts.timeout.count() > 0 ? opts.timeout.count() * kMillisecond : 0;
  state->operations.push_back(value_or_raise(start_sparse_all_reduce(
      *communicator_here(), nested_, tensor, op == c10d::ReduceOp::AVG, timeout)));
  // No inputs for the profiler: it reads strides, which sparse tensors do not have.
  return track(state, {c10d::OpType::_ALLREDUCE_SPARSE, "taco:all_reduce_sparse", opts.timeout},
               {});
}

}  // namespace taco::pg
