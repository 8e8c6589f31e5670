#include "pg/c10d/gradient_watch.h"

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <atomic>

namespace taco::pg {

struct GradientWatch::Seen {
  explicit Seen(const at::Tensor& tensor) : parameter(tensor.getIntrusivePtr()) {}

  at::Tensor tensor() const {
    auto held = parameter.lock();
    return held ? at::Tensor(std::move(held)) : at::Tensor();
  }

  const c10::weak_intrusive_ptr<c10::TensorImpl> parameter;
  const torch::autograd::FunctionPreHook* hook = nullptr;  // identifies it among the parameter's
  std::atomic<bool> used = false;
  std::atomic<bool> thrown_away = false;
  // As the last pass has left it. None: there was none.
  c10::weak_intrusive_ptr<c10::TensorImpl> left{c10::intrusive_ptr<c10::TensorImpl>()};
  std::uint32_t version = 0;
  bool nonzero = false;  // it was: only then do zeros say anything
};

namespace {

std::uint32_t version_of(const at::Tensor& tensor) {
  return tensor.is_inference() ? 0
                               : tensor.unsafeGetTensorImpl()->version_counter().current_version();
}

bool is_left_there(const GradientWatch::Seen& seen, const at::Tensor& gradient) {
  const auto left = seen.left.lock();
  return left && gradient.defined() && left.get() == gradient.unsafeGetTensorImpl();
}

// In place, or zeros have been put there. Views of one buffer (DDP's) share their version: of those
// nothing can be said.
bool was_zeroed(const GradientWatch::Seen& seen, const at::Tensor& gradient) {
  if (!seen.nonzero || gradient.is_view()) return false;
  const bool untouched = is_left_there(seen, gradient) && version_of(gradient) == seen.version;
  return !untouched && is_zero_everywhere(gradient);
}

// Before a gradient is added to what is there.
class LookBefore : public torch::autograd::FunctionPreHook {
 public:
  explicit LookBefore(std::shared_ptr<GradientWatch::Seen> seen) : seen_(std::move(seen)) {}

  torch::autograd::variable_list operator()(const torch::autograd::variable_list& grads) override {
    if (const at::Tensor parameter = seen_->tensor(); parameter.defined()) {
      const at::Tensor& gradient = parameter.grad();
      const bool first = !seen_->used.exchange(true);
      if (!gradient.defined() || (first && was_zeroed(*seen_, gradient))) {
        seen_->thrown_away = true;
      }
    }
    return grads;
  }
  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs&) const override {}

 private:
  const std::shared_ptr<GradientWatch::Seen> seen_;
};

using PreHooks = std::vector<std::unique_ptr<torch::autograd::FunctionPreHook>>;

PreHooks& hooks_of(const at::Tensor& parameter) {
  return torch::autograd::impl::materialize_autograd_meta(parameter)->hooks_;
}

bool looks(const GradientWatch::Seen& seen, const at::Tensor& parameter) {
  const PreHooks& hooks = hooks_of(parameter);
  return std::any_of(hooks.begin(), hooks.end(),
                     [&](const auto& hook) { return hook.get() == seen.hook; });
}

// Beside hooks that others have. Python removes all when it adds the first of its own.
void look_before(const std::shared_ptr<GradientWatch::Seen>& seen, const at::Tensor& parameter) {
  if (parameter.is_meta() || !parameter.is_leaf()) return;
  if (looks(*seen, parameter)) return;
  auto hook = std::make_unique<LookBefore>(seen);
  seen->hook = hook.get();
  hooks_of(parameter).push_back(std::move(hook));
}

}  // namespace

GradientWatch::GradientWatch(const std::vector<std::pair<std::string, at::Tensor>>& parameters) {
  for (const auto& [name, tensor] : parameters) {
    seen_.push_back(std::make_shared<Seen>(tensor));
    look_before(seen_.back(), tensor);
  }
}

GradientWatch::~GradientWatch() {
  for (const std::shared_ptr<Seen>& seen : seen_) {
    const at::Tensor tensor = seen->tensor();
    if (!tensor.defined() || seen->hook == nullptr) continue;
    std::erase_if(hooks_of(tensor), [&](const auto& hook) { return hook.get() == seen->hook; });
  }
}

bool GradientWatch::is_used(int parameter) const {
  const Seen& seen = *seen_[parameter];
  if (seen.used || seen.hook == nullptr) return seen.used;
  const at::Tensor tensor = seen.tensor();
  return tensor.defined() && !looks(seen, tensor);  // nobody has looked in this pass
}

bool GradientWatch::is_idle(int parameter) const {
  return seen_[parameter]->hook != nullptr && !is_used(parameter);
}

std::vector<int> GradientWatch::thrown_away(std::span<const int> parameters) const {
  std::vector<int> all;
  for (const int parameter : parameters) {
    const Seen& seen = *seen_[parameter];
    bool thrown_away = seen.thrown_away;
    if (!seen.used && !thrown_away) {
      const at::Tensor tensor = seen.tensor();
      const at::Tensor gradient = tensor.defined() ? tensor.grad() : at::Tensor();
      thrown_away = !gradient.defined() || was_zeroed(seen, gradient);
    }
    if (thrown_away) all.push_back(parameter);
  }
  return all;
}

void GradientWatch::begin(std::span<const int> parameters) {
  for (const int parameter : parameters) {
    seen_[parameter]->used = false;
    seen_[parameter]->thrown_away = false;
  }
}

void GradientWatch::end(std::span<const int> parameters) {
  for (const int number : parameters) {
    Seen& seen = *seen_[number];
    const at::Tensor tensor = seen.tensor();
    if (tensor.defined()) look_before(seen_[number], tensor);
    const at::Tensor gradient = tensor.defined() ? tensor.grad() : at::Tensor();
    seen.nonzero = gradient.defined() && !is_zero_everywhere(gradient);
    if (!gradient.defined()) {
      seen.left = c10::weak_intrusive_ptr<c10::TensorImpl>(c10::intrusive_ptr<c10::TensorImpl>());
      continue;
    }
    seen.left = c10::weak_intrusive_ptr<c10::TensorImpl>(gradient.getIntrusivePtr());
    seen.version = version_of(gradient);
  }
}

at::Tensor GradientWatch::parameter(int parameter) const { return seen_[parameter]->tensor(); }

bool is_zero_everywhere(const at::Tensor& tensor) {
  if (tensor.scalar_type() != at::kFloat || !tensor.is_non_overlapping_and_dense()) return false;
  const float* values = tensor.const_data_ptr<float>();
  return std::all_of(values, values + tensor.numel(), [](float value) { return value == 0; });
}

}  // namespace taco::pg
