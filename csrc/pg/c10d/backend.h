// The c10d backend "taco": checks each call, translates it to an OperationSpec and hands it to the
// group's Communicator. No algorithm lives here. Any thread may call. What blocks: making a group
// (the constructor, split and merge join the other ranks through the store), monitoredBarrier,
// waitForPendingWorks, and leaving (shutdown and the destructor linger for what is unacknowledged).
// Python calls in with the GIL released.
//
// Spread by concern: backend.cc (life of a group), backend_collectives.cc, backend_coalesced.cc
// (several tensors in one call), backend_sparse.cc, backend_gradients.cc, backend_p2p.cc,
// backend_hooks.cc (what torch asks beside collectives), backend_reconfigure.cc,
// window/backend_window.cc (one-sided operations).
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "base/condition.h"
#include "pg/c10d/callback_scope.h"
#include "pg/c10d/ephemeral_timeouts.h"
#include "pg/c10d/hang_dump.h"
#include "pg/c10d/hook_table.h"
#include "pg/c10d/succession.h"
#include "pg/c10d/time_estimates.h"
#include "pg/c10d/torch_features.h"
#include "pg/c10d/work.h"
#include "pg/communicator.h"

namespace taco::pg {

class Translation;

// "float16", "bfloat16", or "" for none.
std::shared_ptr<const Codec> codec_named(const std::string& format);

class Backend : public c10d::Backend {
 public:
  struct Options : c10d::Backend::Options {
    explicit Options(std::chrono::milliseconds timeout = kBackendDefaultTimeout)
        : c10d::Backend::Options("taco", timeout) {}
    Options(const Options&) = default;
    c10::intrusive_ptr<c10d::Backend::Options> clone() const {
      return c10::make_intrusive<Options>(*this);
    }

    std::string algorithm;                // as TACO_ALGORITHM, for this group only
    std::string compress_all_reduce;      // "float16" or "bfloat16": how tensors travel
    std::optional<CostParameters> costs;  // of the group this one is split from
  };

  // Joins the other `size - 1` ranks; throws RendezvousError or VersionMismatchError.
  static c10::intrusive_ptr<Backend> create(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                            int size, c10::intrusive_ptr<Options> options);
  // For create(), which also registers the backend for the interpreter's exit.
  Backend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
          c10::intrusive_ptr<Options> options);
  ~Backend() override;

  const std::string getBackendName() const override { return "taco"; }
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override;
  void setTimeout(std::chrono::milliseconds timeout) override;
  bool supportsSplitting() const override { return true; }
  // No: torch keeps what is put off while a group coalesces for all threads at once, so that
  // another thread's collective would return undone. A batch of messages needs none of it.
  bool supportsCoalescing() const override { return false; }

  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& tensors,
                                           const c10d::BroadcastOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> allreduce_sparse(std::vector<at::Tensor>& tensors,
                                                  const c10d::AllreduceOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> allreduce_coalesced(
      std::vector<at::Tensor>& tensors, const c10d::AllreduceCoalescedOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> reduce(std::vector<at::Tensor>& tensors,
                                        const c10d::ReduceOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> allgather(std::vector<std::vector<at::Tensor>>& outputs,
                                           std::vector<at::Tensor>& inputs,
                                           const c10d::AllgatherOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& output, at::Tensor& input,
                                                 const c10d::AllgatherOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> allgather_coalesced(std::vector<std::vector<at::Tensor>>& outputs,
                                                     std::vector<at::Tensor>& inputs,
                                                     const c10d::AllgatherOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> allgather_into_tensor_coalesced(
      std::vector<at::Tensor>& outputs, std::vector<at::Tensor>& inputs,
      const c10d::AllgatherOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> gather(std::vector<std::vector<at::Tensor>>& outputs,
                                        std::vector<at::Tensor>& inputs,
                                        const c10d::GatherOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> scatter(std::vector<at::Tensor>& outputs,
                                         std::vector<std::vector<at::Tensor>>& inputs,
                                         const c10d::ScatterOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> reduce_scatter(std::vector<at::Tensor>& outputs,
                                                std::vector<std::vector<at::Tensor>>& inputs,
                                                const c10d::ReduceScatterOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(
      at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> reduce_scatter_tensor_coalesced(
      std::vector<at::Tensor>& outputs, std::vector<at::Tensor>& inputs,
      const c10d::ReduceScatterOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> alltoall_base(at::Tensor& output, at::Tensor& input,
                                               std::vector<int64_t>& output_splits,
                                               std::vector<int64_t>& input_splits,
                                               const c10d::AllToAllOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> alltoall(std::vector<at::Tensor>& outputs,
                                          std::vector<at::Tensor>& inputs,
                                          const c10d::AllToAllOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int destination,
                                      int tag) override;
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int source,
                                      int tag) override;
  c10::intrusive_ptr<c10d::Work> recvAnysource(std::vector<at::Tensor>& tensors, int tag) override;
  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions& opts) override;
  void monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) override;

  // Everything the calling thread starts in between becomes one Work. A block that an error has
  // ended without endCoalescing() is forgotten when the next one begins.
  void startCoalescing() override;
  c10::intrusive_ptr<c10d::Work> endCoalescing() override;

  c10::intrusive_ptr<c10d::Backend> split(
      const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
      const c10::intrusive_ptr<c10d::Backend::Options>& opts) override;
  c10::intrusive_ptr<c10d::Backend> merge(const c10::intrusive_ptr<c10d::Store>& store,
                                          const c10::intrusive_ptr<c10d::Backend::Options>& opts,
                                          const int& rank, const int& size) override;

  void abort() override;
  // Leaves the group, whatever happens. Raises MismatchError afterwards, once, when ranks disagreed
  // about an operation whose part here was complete before.
  void shutdown() override;
  Status leave();  // the same for those who cannot raise
  // Nobody refers to this group any more: it is left now, however long the registry for the
  // interpreter's exit, which refers to it weakly, puts its destructor off.
  void release_resources() override;
  c10d::ErrorType getError() override;
  void setSequenceNumberForGroup() override;
  uint64_t getSequenceNumberForGroup() override;
  void waitForPendingWorks() override;
  void registerOnCompletionHook(
      std::function<void(std::shared_ptr<c10d::WorkInfo>)>&& hook) override;
  void enableCollectivesTiming() override {}  // every operation is timed anyway

  // torch has these from some version on (torch_features.h), so they override nothing everywhere.
  // NOLINTBEGIN(readability-identifier-naming): their names are torch's.
  bool isInitialized() { return life_.current() != nullptr; }
  bool supportsReconfigure() const { return true; }
  std::string get_reconfigure_handle() const;
  // Blocks until all members of the new group have come.
  c10::intrusive_ptr<c10d::Work> reconfigure(const ReconfigureOptions& opts);
  void addEphemeralTimeout(const std::chrono::milliseconds& timeout);
  bool supportsTimeEstimation() const override { return kCanEstimateTime; }
  void startTimeEstimate() { estimates_.begin(); }
  float endTimeEstimate();  // microseconds, one after the other
  // Completion hooks run on the engine, abort hooks, which may take their time, on the completion
  // thread: once, when the group has failed.
  bool supportsCompletionHooks() const { return true; }
  void registerCompletionHook(std::int64_t number, CompletionHook hook);
  void unregisterCompletionHook(std::int64_t number) { completion_hooks_->remove(number); }
  bool supportsAbortHooks() const { return true; }
  void registerAbortHook(std::int64_t number, AbortHook hook);
  void unregisterAbortHook(std::int64_t number) { abort_hooks_->remove(number); }
#if TACO_TORCH_SINCE(14)
  bool supportsWindow() const override { return true; }
  // Collective where a tensor is given: all ranks register in the same order.
  c10::intrusive_ptr<c10d::Window> new_window(const std::optional<at::Tensor>& tensor) override;
#endif
  // NOLINTEND(readability-identifier-naming)

  // How a gradient is coded between hosts, as in OperationSpec.
  struct Coded {
    std::shared_ptr<const Codec> codec;  // null: as it is
    std::shared_ptr<Feedback> feedback;
    bool scaled = false, fates = false;
  };
  // The SUM or AVG over the group of a contiguous float32 tensor on the CPU, in place.
  c10::intrusive_ptr<c10d::Work> reduce_gradient(const at::Tensor& tensor,
                                                 const c10d::AllreduceOptions& opts, Coded coded);
  // _reduce_scatter_base, coded between hosts if there is a codec (then of float32 only).
  c10::intrusive_ptr<c10d::Work> reduce_scatter_coded(at::Tensor& output, at::Tensor& input,
                                                      const c10d::ReduceScatterOptions& opts,
                                                      std::shared_ptr<const Codec> codec);

  // For who knows more of an all_reduce than its caller: the next one that this thread starts in
  // this group is `instead`'s affair. Where that returns null, it goes on as if nothing had been.
  using Instead = std::function<c10::intrusive_ptr<c10d::Work>(const at::Tensor& tensor,
                                                               const c10d::AllreduceOptions& opts)>;
  void arm(Instead instead);
  void disarm();

  // The ranks that share memory, by rank: a number for each (Topology::groups).
  std::vector<int> groups();

  // Those of this moment; raises where the group has no members yet.
  std::shared_ptr<Generation> generation() const;
  std::shared_ptr<Communicator> communicator() const { return generation()->communicator(); }

 private:
  friend class BackendWindow;
  struct Call {  // what launch() needs besides the translation
    c10d::OpType type;
    const char* title;
    std::chrono::milliseconds timeout = c10d::kUnsetTimeout;
    bool async = true;
  };
  c10::intrusive_ptr<c10d::Work> launch(Translation& translation, const Call& call,
                                        const std::vector<at::Tensor>& inputs,
                                        std::vector<at::Tensor> results);
  // In `group`, which belongs to that generation.
  c10::intrusive_ptr<c10d::Work> launch_in(const std::shared_ptr<Communicator>& group,
                                           const Generation& generation, Translation& translation,
                                           const Call& call, const std::vector<at::Tensor>& inputs,
                                           std::vector<at::Tensor> results);
  c10::intrusive_ptr<c10d::Work> work_of(WorkStatePtr state, const Call& call,
                                         const std::optional<std::vector<at::Tensor>>& inputs,
                                         const Generation& generation) const;
  // While one lives, the operations this thread starts are parts of one call and do not show in the
  // profiler: combine() names the whole.
  class PartsOfOneCall {
   public:
    PartsOfOneCall();
    ~PartsOfOneCall();
    PartsOfOneCall(const PartsOfOneCall&) = delete;
    PartsOfOneCall& operator=(const PartsOfOneCall&) = delete;
  };
  c10::intrusive_ptr<c10d::Work> combine(const std::vector<c10::intrusive_ptr<c10d::Work>>& works,
                                         const Call& call, const std::vector<at::Tensor>& inputs,
                                         const std::vector<at::Tensor>& results);
  void remember(const WorkStatePtr& state, const Call& call);
  c10::intrusive_ptr<c10d::Work> estimate(Translation& translation, const Call& call,
                                          const std::vector<at::Tensor>& inputs,
                                          std::vector<at::Tensor> results);
  Duration timeout_of(const Call& call);
  void require_idle();
  void hear_of_failures(Generation& generation);
  void report_completion(const WorkStatePtr& state, OperationSpec& spec);
  void report_completion_of_all(const WorkStatePtr& state);
  bool hooks_end_before(Time until);
  // That of the generation, or, inside a future's callback, that of the callback's operation.
  static std::shared_ptr<Communicator> communicator_here(const Generation& generation);
  bool coalescing_here();
  static void set_reduction(Translation& translation, const c10d::ReduceOp& op,
                            c10::ScalarType type);
  void set_codec(OperationSpec& spec) const;
  c10::intrusive_ptr<c10d::Work> run_armed(const at::Tensor& tensor,
                                           const c10d::AllreduceOptions& opts);
  void check_root(int64_t root, const char* what) const;

  struct Hooks {  // completion hooks that have not returned yet
    std::atomic<int> open{0};
    std::mutex mutex;
    Condition idle;
  };

  c10::intrusive_ptr<Options> options_;
  Succession life_;
  std::shared_ptr<const Codec> codec_;  // of a plain all_reduce; null: it is exact
  std::shared_ptr<HangDump> hang_dump_;
  std::shared_ptr<Hooks> hooks_ = std::make_shared<Hooks>();
  const std::shared_ptr<HookTable<CompletionHook>> completion_hooks_ =
      std::make_shared<HookTable<CompletionHook>>();
  const std::shared_ptr<HookTable<AbortHook>> abort_hooks_ =
      std::make_shared<HookTable<AbortHook>>();
  EphemeralTimeouts ephemeral_timeouts_;
  TimeEstimates estimates_;

  std::mutex mutex_;  // guards what follows
  bool down_ = false;
  std::deque<std::weak_ptr<WorkState>> pending_;
  std::map<std::thread::id, std::vector<WorkStatePtr>> coalescing_;  // the open blocks
};

}  // namespace taco::pg
