#include "pg/c10d/ddp_hook.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <cmath>
#include <mutex>

#include "base/log.h"
#include "base/per_process.h"
#include "edge/errors.h"
#include "pg/algorithms/gradient_shard.h"

namespace taco::pg {
namespace {

// Those alive, to add up their norms.
struct Hooks {
  std::mutex mutex;
  std::vector<std::weak_ptr<GradientHook>> all;
};

constinit PerProcess<Hooks> hooks;

std::vector<std::shared_ptr<GradientHook>> hooks_alive() {
  std::vector<std::shared_ptr<GradientHook>> alive;
  std::lock_guard lock(hooks().mutex);
  for (const auto& weak : hooks().all) {
    if (auto hook = weak.lock()) alive.push_back(std::move(hook));
  }
  return alive;
}

lightcc::Gradients::PartOf part_of(Backend& backend) {
  const Topology topology = backend.communicator()->topology();
  return [topology, rank = backend.getRank()](std::uint64_t elements) {
    const Shard shard = gradient_shard(elements * sizeof(float), sizeof(float), topology, rank);
    return lightcc::Part{shard.offset / sizeof(float), shard.bytes / sizeof(float)};
  };
}

std::vector<lightcc::Parameter> described(
    const std::vector<std::pair<std::string, at::Tensor>>& parameters) {
  std::vector<lightcc::Parameter> all;
  all.reserve(parameters.size());
  for (const auto& [name, tensor] : parameters) {
    all.push_back({name, static_cast<std::uint64_t>(tensor.numel())});
  }
  return all;
}

c10d::AllreduceOptions average_options() {
  c10d::AllreduceOptions options;
  options.reduceOp = c10d::ReduceOp::AVG;
  return options;
}

class DdpHook : public c10d::CppCommHookInterface<std::shared_ptr<GradientHook>> {
 public:
  using CppCommHookInterface::CppCommHookInterface;
  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
    return state_->run(bucket);
  }
};

}  // namespace

bool is_plain_float32(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kFloat && tensor.layout() == c10::kStrided &&
         tensor.is_contiguous() && tensor.device().is_cpu();
}

std::span<float> elements_of(const at::Tensor& tensor) {
  return {tensor.data_ptr<float>(), static_cast<std::size_t>(tensor.numel())};
}

GradientHook::GradientHook(c10::intrusive_ptr<Backend> backend,
                           const std::vector<std::pair<std::string, at::Tensor>>& parameters,
                           const lightcc::Settings& settings, Scale scale)
    : backend_(std::move(backend)),
      gradients_(described(parameters), settings, backend_->getRank(), backend_->getSize(),
                 part_of(*backend_)),
      scale_(std::move(scale)),
      watch_(parameters),
      choice_(AgreedChoice::create(backend_, settings)) {
  for (const auto& [name, tensor] : parameters) {
    index_of_.emplace(tensor.unsafeGetTensorImpl(), static_cast<int>(index_of_.size()));
  }
}

void GradientHook::attach(const std::shared_ptr<c10d::Reducer>& reducer,
                          const std::vector<at::Tensor>& order, bool may_be_unused) {
  if (may_be_unused) {
    std::vector<int> numbers;
    for (const at::Tensor& parameter : order) {
      const auto found = index_of_.find(parameter.unsafeGetTensorImpl());
      numbers.push_back(found == index_of_.end() ? -1 : found->second);
    }
    unused_.emplace(reducer, std::move(numbers));
  }
  reducer->register_comm_hook(comm_hook_of(shared_from_this()));
}

void GradientHook::begin_step() {
  wait_for_all();
  gradients_.begin_step();
}

// Nothing is under way when it changes, as far as all goes by the book.
void GradientHook::follow_scale() {
  const double scale = scale_ ? scale_() : 1.0;
  if (scale == gradients_.scale()) return;
  wait_for_all();
  raise_if_error(gradients_.rescale(scale));
}

void GradientHook::scaled_by(Scale scale) {
  gradients().assume_scale(scale());
  scale_ = std::move(scale);
}

void GradientHook::announce(at::Tensor flag, WorkPtr work) {
  join_flag_ = std::move(flag);
  join_work_ = std::move(work);
}

void GradientHook::hear_of_join() {
  if (!join_work_) return;
  std::exchange(join_work_, {})->wait();
  uneven_ = *join_flag_.const_data_ptr<float>() > 0;
  was_uneven_ = was_uneven_ || uneven_;
}

std::vector<double> GradientHook::to_catch_up(bool is_last) {
  if (!was_uneven_) return {};
  const std::vector<std::uint8_t> decided = gradients().decided();
  std::vector<double> known = {is_last ? gradients_.scale() : 0.0};
  known.insert(known.end(), decided.begin(), decided.end());
  return known;
}

void GradientHook::catch_up(const std::vector<double>& known) {
  uneven_ = was_uneven_ = false;
  const std::vector<std::uint8_t> decided(known.begin() + 1, known.end());
  raise_if_error(gradients().catch_up(decided, known.front()));
}

// Buckets come in order, so one that does not follow the last belongs to the next step.
void GradientHook::step_begins_at(std::size_t index) {
  if (newest_ && index > *newest_) {
    newest_ = index;
    return;
  }
  newest_ = index;
  under_way_.clear();  // a backward pass that failed has not ended
  if (unused_) unused_->clear();
  hear_of_join();
  begin_step();
  if (!choice_) return;
  if (auto ways = choice_->step_begins(gradients_.step())) gradients_.choose(std::move(*ways));
}

// Looks for gradients that the program has thrown away since the last pass.
void GradientHook::look_at(const lightcc::Layout& layout) {
  const std::vector<int> thrown_away = watch_.thrown_away(layout);
  if (!thrown_away.empty()) gradients_.decide(thrown_away, lightcc::Fate::kDropped);
}

// Nothing where the buffer is not simply these parameters' elements one after the other.
std::optional<lightcc::Layout> GradientHook::layout_of(const c10d::GradBucket& bucket) const {
  lightcc::Layout layout;
  std::uint64_t elements = 0;
  for (const at::Tensor& parameter : bucket.getParameters()) {
    const auto found = index_of_.find(parameter.unsafeGetTensorImpl());
    if (found == index_of_.end()) return std::nullopt;
    layout.push_back(found->second);
    elements += parameter.numel();
  }
  if (elements != static_cast<std::uint64_t>(bucket.getBuffer().numel())) return std::nullopt;
  return layout;
}

void GradientHook::say_once(bool& said, const std::string& text) const {
  if (!std::exchange(said, true)) TACO_LOG_WARNING("lightcc", "%s", text.c_str());
}

GradientHook::FuturePtr GradientHook::run(c10d::GradBucket& bucket) {
  step_begins_at(bucket.getIndex());
  const at::Tensor& buffer = bucket.getBuffer();
  if (!is_plain_float32(buffer)) {
    if (buffer.layout() == c10::kStrided) {
      say_once(said_dtype_, c10::str("gradients of ", buffer.scalar_type(),
                                     " are sent as they are: only float32 is compressed"));
    }
    return as_without_us(buffer)->getFuture();
  }
  const std::optional<lightcc::Layout> layout = layout_of(bucket);
  if (!layout) {
    say_once(said_unknown_,
             "a bucket holds other elements than those of the model's parameters; it is sent as "
             "it is");
    return as_without_us(buffer)->getFuture();
  }
  return average_of_ddp(bucket.getIndex(), *layout, buffer)->getFuture();
}

// As DDP does it by itself: divided first, so that sums of float16 do not overflow.
GradientHook::WorkPtr GradientHook::as_without_us(const at::Tensor& buffer) {
  std::vector<at::Tensor> tensors = {buffer};
  c10d::AllreduceOptions options;
  if (buffer.layout() == c10::kSparse) {
    options.reduceOp = c10d::ReduceOp::AVG;
  } else {
    tensors.front().div_(backend_->getSize());
  }
  return backend_->allreduce(tensors, options);
}

GradientHook::WorkPtr GradientHook::average(std::size_t index, const lightcc::Layout& layout,
                                            const at::Tensor& buffer) {
  step_begins_at(index);
  look_at(layout);
  watch_.begin(layout);
  under_way_.insert(under_way_.end(), layout.begin(), layout.end());
  return reduce({.index = index, .layout = layout, .gradient = elements_of(buffer)}, buffer,
                average_options());
}

GradientHook::WorkPtr GradientHook::average_of_ddp(std::size_t index, const lightcc::Layout& layout,
                                                   const at::Tensor& buffer) {
  // A rank that has joined takes part in passes that are none of its own.
  const bool own = torch::autograd::get_current_graph_task_id() != -1;
  std::vector<std::uint8_t> used;
  if (unused_) {
    for (const int parameter : layout) used.push_back(watch_.is_used(parameter));
  }
  if (own) {
    look_at(layout);
    watch_.begin(layout);
    end_with_backward(layout);
  }
  return reduce({.index = index,
                 .layout = layout,
                 .gradient = elements_of(buffer),
                 .used = used,
                 .uneven = uneven_},
                buffer, average_options());
}

// DDP gives gradients to the parameters at the end of the backward pass, by a callback of its own,
// which comes after those that have been asked for until now, and before those that they ask for.
void GradientHook::end_with_backward(const lightcc::Layout& layout) {
  const bool first = under_way_.empty();
  under_way_.insert(under_way_.end(), layout.begin(), layout.end());
  if (!first) return;
  const auto later = [](std::function<void()> callback) {
    torch::autograd::Engine::get_default_engine().queue_callback(std::move(callback));
  };
  later([later, weak = weak_from_this()] {
    later([weak] {
      if (const auto hook = weak.lock()) hook->end_pass();
    });
  });
}

void GradientHook::end_pass() {
  wait_for_all();  // their gradients may be freed
  if (unused_ && !uneven_) unused_->put_back(gradients_, watch_, under_way_);
  watch_.end(std::exchange(under_way_, {}));
}

GradientHook::WorkPtr GradientHook::reduce(const lightcc::Pass& pass, const at::Tensor& buffer,
                                           const c10d::AllreduceOptions& opts) {
  const Time ready = monotonic_now();
  follow_scale();
  lightcc::Gradients::Plan plan = value_or_raise(gradients_.plan(pass));
  if (plan.feedback && unused_) unused_->take_out(gradients_, pass);
  std::lock_guard lock(mutex_);  // norm() finds either no operation or its Work
  const Time started = monotonic_now();
  WorkPtr work = backend_->reduce_gradient(buffer, opts,
                                           {.codec = std::move(plan.codec),
                                            .feedback = std::move(plan.feedback),
                                            .scaled = scale_ && !pass.uneven,
                                            .fates = plan.fates});
  works_[pass.index] = work;
  if (choice_) choice_->started(pass.index, buffer.nbytes(), ready, started, work);
  return work;
}

GradientHook::WorkPtr GradientHook::average_exactly(const at::Tensor& buffer) {
  return backend_->reduce_gradient(buffer, average_options(), {});
}

// Failures belong to those who wait for the step; here it only matters that nothing is open.
void GradientHook::wait_for_all() {
  std::map<std::size_t, WorkPtr> works;
  {
    std::lock_guard lock(mutex_);
    works = works_;
  }
  for (const auto& [index, work] : works) {
    const WorkStatePtr& state = static_cast<Work*>(work.get())->state();
    if (!state->operations_done()) state->wait_and_hear_signals(kNever);
    (void)state->wait(0);
  }
  std::lock_guard lock(mutex_);
  works_.clear();
}

lightcc::Gradients& GradientHook::gradients() {
  wait_for_all();
  return gradients_;
}

double GradientHook::norm() {
  std::lock_guard lock(mutex_);
  for (const auto& [index, work] : works_) {
    if (!static_cast<Work*>(work.get())->state()->operations_done()) return 0;
  }
  return gradients_.norm();
}

std::vector<int> GradientHook::put_aside(const std::vector<int>& parameters) {
  std::vector<int> all = gradients().dropped(parameters);
  std::erase_if(all, [this](int parameter) { return !watch_.is_idle(parameter); });
  return all;
}

void GradientHook::change(const lightcc::Settings& settings, Scale scale) {
  gradients().change(settings);
  choose_anew();
  scale_ = std::move(scale);
}

void GradientHook::move(c10::intrusive_ptr<Backend> backend) {
  gradients().move(backend->getRank(), backend->getSize(), part_of(*backend));
  backend_ = std::move(backend);
  choose_anew();
}

void GradientHook::choose_anew() {
  auto choice = AgreedChoice::create(backend_, gradients_.settings());
  gradients_.choose({});
  std::lock_guard lock(mutex_);
  choice_ = std::move(choice);
}

std::vector<std::string> GradientHook::chosen() const {
  std::lock_guard lock(mutex_);
  return choice_ ? choice_->chosen() : std::vector<std::string>();
}

std::shared_ptr<GradientHook> GradientHook::create(
    c10::intrusive_ptr<Backend> backend,
    const std::vector<std::pair<std::string, at::Tensor>>& parameters,
    const lightcc::Settings& settings, Scale scale) {
  auto hook =
      std::make_shared<GradientHook>(std::move(backend), parameters, settings, std::move(scale));
  std::lock_guard lock(hooks().mutex);
  std::erase_if(hooks().all, [](const auto& weak) { return weak.expired(); });
  hooks().all.push_back(hook);
  return hook;
}

double residual_norm_of_all() {
  double squares = 0;
  for (const auto& hook : hooks_alive()) squares += std::pow(hook->norm(), 2);
  return std::sqrt(squares);
}

std::vector<std::string> chosen_by_all() {
  std::vector<std::string> all;
  for (const auto& hook : hooks_alive()) {
    for (std::string& one : hook->chosen()) all.push_back(std::move(one));
  }
  return all;
}

std::unique_ptr<c10d::CommHookInterface> comm_hook_of(std::shared_ptr<GradientHook> hook) {
  return std::make_unique<DdpHook>(std::move(hook));
}

}  // namespace taco::pg
