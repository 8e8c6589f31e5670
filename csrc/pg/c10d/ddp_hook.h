// How LightCC stands between a model and its group: DDP's Reducer gives it each bucket as soon as
// its gradients are there, and it starts the all_reduce of their average, coded or not
// (pg/lightcc/gradients.h decides, agreed_choice.h under Compression::kAuto). A manual loop does
// the same by average().
//
// Under FSDP2, the leg between replicas is an all_reduce that torch starts by itself, before any
// hook is called. So the group is told beforehand what that all_reduce is (arm()).
//
// Shared by the Reducer and Python; either may outlive the other. It holds the group, as DDP does,
// but no parameter. DDP calls on the thread that runs backward, or, for a rank that has joined, on
// Python's; never two at a time.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/comm.hpp>
#include <unordered_map>
#include <utility>
#include <vector>

#include "pg/c10d/agreed_choice.h"
#include "pg/c10d/backend.h"
#include "pg/lightcc/gradients.h"

namespace taco::pg {

class GradientHook {
 public:
  using FuturePtr = c10::intrusive_ptr<c10::ivalue::Future>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  // The factor that GradScaler multiplies the loss by just now; takes the GIL itself. Empty: 1,
  // always.
  using Scale = std::function<double()>;

  static std::shared_ptr<GradientHook> create(
      c10::intrusive_ptr<Backend> backend,
      const std::vector<std::pair<std::string, at::Tensor>>& parameters,
      const lightcc::Settings& settings, Scale scale);
  // For create(), which also lists the hook for residual_norm_of_all().
  GradientHook(c10::intrusive_ptr<Backend> backend,
               const std::vector<std::pair<std::string, at::Tensor>>& parameters,
               const lightcc::Settings& settings, Scale scale);

  // Called by DDP. The future's value is the list of the averaged buffer alone.
  FuturePtr run(c10d::GradBucket& bucket);
  // Called by a manual loop: buckets with rising `index` of one step, which begins when it falls.
  WorkPtr average(std::size_t index, const lightcc::Layout& layout, const at::Tensor& buffer);

  // The calls for FSDP2's replicas (fsdp_hook.cc), all from one thread. A step begins, and the
  // caller knows whether the one before it was skipped, by found_not_finite() of all ranks.
  // end_step() says so before the next one begins, and before anybody asks what is owed.
  void begin_step(bool skipped);
  void end_step(bool skipped);
  bool found_not_finite() const { return found_not_finite_->load(); }  // in a result of this step
  // The next all_reduce in the group is that of bucket `index`, laid out like this. It must begin,
  // or disarm() be called, while this object lives.
  void arm(std::size_t index, const lightcc::Layout& layout);
  void disarm() { backend_->disarm(); }

  // Called for a checkpoint or flush(): no codec, and no step.
  WorkPtr average_exactly(const at::Tensor& buffer);

  // Only when all that has been started has ended: these wait for it. owed(): to ask what is owed
  // or to change it, between two steps; it knows then whether the newest was skipped, where that
  // shows on each rank by itself.
  void change(const lightcc::Settings& settings, Scale scale);
  void move(c10::intrusive_ptr<Backend> backend);
  lightcc::Gradients& gradients();
  lightcc::Gradients& owed();

  double norm();  // of what is owed; 0 while gradients are being reduced
  // How each bucket is sent, if that is chosen by what it costs; else empty.
  std::vector<std::string> chosen() const;
  // The ranks that share memory, by rank: shards are cut by it.
  std::vector<int> groups() const { return backend_->groups(); }

 private:
  void step_begins_at(std::size_t index);
  WorkPtr average_of_step(std::size_t index, const lightcc::Layout& layout,
                          const at::Tensor& buffer);
  // `at_once` as in Gradients::plan().
  WorkPtr reduce(std::size_t index, const lightcc::Layout& layout, const at::Tensor& buffer,
                 const c10d::AllreduceOptions& opts, bool at_once);
  WorkPtr reduce_armed(std::size_t index, const lightcc::Layout& layout, const at::Tensor& buffer,
                       const c10d::AllreduceOptions& opts);
  std::function<void()> look_out(const at::Tensor& buffer) const;
  void wait_for_all();
  void choose_anew();
  std::optional<lightcc::Layout> layout_of(const c10d::GradBucket& bucket) const;
  WorkPtr as_without_us(const at::Tensor& buffer);
  void say_once(bool& said, const std::string& text) const;

  c10::intrusive_ptr<Backend> backend_;
  lightcc::Gradients gradients_;
  Scale scale_;
  // Each parameter's index; DDP's buckets name parameters by their tensors.
  std::unordered_map<const c10::TensorImpl*, int> index_of_;
  std::optional<std::size_t> newest_;                    // bucket of this step
  std::shared_ptr<std::atomic<bool>> found_not_finite_;  // in a result of this step
  bool said_dtype_ = false, said_unknown_ = false;
  mutable std::mutex mutex_;              // guards what follows
  std::map<std::size_t, WorkPtr> works_;  // of this step, by bucket
  std::unique_ptr<AgreedChoice> choice_;  // null: there is nothing to choose
};

// The Reducer owns one, which runs `hook`.
std::unique_ptr<c10d::CommHookInterface> comm_hook_of(std::shared_ptr<GradientHook> hook);

// Whether a tensor can be compressed, by its elements.
bool is_plain_float32(const at::Tensor& tensor);
std::span<float> elements_of(const at::Tensor& tensor);

// The norm of what all hooks alive owe, for taco_torch.stats().
double residual_norm_of_all();
std::vector<std::string> chosen_by_all();

}  // namespace taco::pg
