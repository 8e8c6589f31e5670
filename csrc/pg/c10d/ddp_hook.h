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
#include "pg/c10d/gradient_watch.h"
#include "pg/c10d/unused_gradients.h"
#include "pg/lightcc/gradients.h"

namespace taco::pg {

class GradientHook : public std::enable_shared_from_this<GradientHook> {
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

  // Attaches to DDP, whose reducer's parameters are `order`. `may_be_unused`: some passes do not
  // use all of them.
  void attach(const std::shared_ptr<c10d::Reducer>& reducer, const std::vector<at::Tensor>& order,
              bool may_be_unused);
  // The future's value is the list of the averaged buffer alone.
  FuturePtr run(c10d::GradBucket& bucket);
  // Called by a manual loop: buckets with rising `index` of one step, which begins when it falls.
  WorkPtr average(std::size_t index, const lightcc::Layout& layout, const at::Tensor& buffer);
  // Its gradients are what they have become. Of DDP that is known here.
  void end_pass();

  // The calls for FSDP2's replicas (fsdp_hook.cc), all from one thread. A step begins.
  void begin_step();
  // The next all_reduce in the group is that of bucket `index`, laid out like this. It must begin,
  // or disarm() be called, while this object lives. `whole`: nothing of it is left out.
  void arm(std::size_t index, const lightcc::Layout& layout, bool whole);
  void disarm() { backend_->disarm(); }

  // Called for a checkpoint or flush(): no codec, and no step.
  WorkPtr average_exactly(const at::Tensor& buffer);

  // Those whose gradients can only have been put aside before they were thrown away, if they have
  // any: of their newest pass, and none has been computed since.
  std::vector<int> put_aside(const std::vector<int>& parameters);

  // Only when all that has been started has ended: these wait for it.
  void change(const lightcc::Settings& settings, Scale scale);
  void move(c10::intrusive_ptr<Backend> backend);
  lightcc::Gradients& gradients();

  // Within DDP's join(). Of the step that is about to begin: `flag`, a float32 that is above 0 once
  // `work` is done if some rank has no inputs any more.
  void announce(at::Tensor flag, WorkPtr work);
  // For all_reduce(MAX): what ranks that have inputs know better than others; empty where all have
  // had some in each step. Then the result.
  std::vector<double> to_catch_up(bool is_last);
  void catch_up(const std::vector<double>& known);
  // The loss has been scaled like this all the time, as turns out.
  void scaled_by(Scale scale);

  double norm();  // of what is owed; 0 while gradients are being reduced
  // How each bucket is sent, if that is chosen by what it costs; else empty.
  std::vector<std::string> chosen() const;
  // The ranks that share memory, by rank: shards are cut by it.
  std::vector<int> groups() const { return backend_->groups(); }

 private:
  void step_begins_at(std::size_t index);
  WorkPtr average_of_ddp(std::size_t index, const lightcc::Layout& layout,
                         const at::Tensor& buffer);
  void look_at(const lightcc::Layout& layout);
  void end_with_backward(const lightcc::Layout& layout);
  void hear_of_join();
  WorkPtr reduce(const lightcc::Pass& pass, const at::Tensor& buffer,
                 const c10d::AllreduceOptions& opts);
  WorkPtr reduce_armed(std::size_t index, const lightcc::Layout& layout, bool whole,
                       const at::Tensor& buffer, const c10d::AllreduceOptions& opts);
  void follow_scale();
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
  GradientWatch watch_;
  std::optional<UnusedGradients> unused_;  // none: passes use all parameters
  lightcc::Layout under_way_;              // parameters in the pass that goes on
  std::optional<std::size_t> newest_;      // bucket of this step
  at::Tensor join_flag_;                   // of announce()
  WorkPtr join_work_;
  bool uneven_ = false;      // some rank has no inputs in this step
  bool was_uneven_ = false;  // or had none in one of this join()
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
