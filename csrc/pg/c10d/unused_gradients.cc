#include "pg/c10d/unused_gradients.h"

#include <algorithm>
#include <utility>

namespace taco::pg {

UnusedGradients::UnusedGradients(std::weak_ptr<c10d::Reducer> reducer, std::vector<int> order)
    : reducer_(std::move(reducer)), order_(std::move(order)) {}

void UnusedGradients::take_out(const lightcc::Gradients& gradients, const lightcc::Pass& pass) {
  std::size_t from = 0;
  for (std::size_t place = 0; place < pass.layout.size(); ++place) {
    const int parameter = pass.layout[place];
    const std::size_t elements = gradients.parameters()[parameter].elements;
    if (!pass.used[place]) {
      const std::span<float> part = pass.gradient.subspan(from, elements);
      const bool zero =
          std::all_of(part.begin(), part.end(), [](float value) { return value == 0; });
      left_.push_back({parameter, {}});
      if (!zero) left_.back().values.assign(part.begin(), part.end());
      std::fill(part.begin(), part.end(), 0.0F);
    }
    from += elements;
  }
}

// The map is of the pass that has just been: DDP has waited for it.
std::vector<int> UnusedGradients::used_by() const {
  std::vector<int> used(1 + *std::max_element(order_.begin(), order_.end()));
  const auto reducer = reducer_.lock();
  if (!reducer) return used;
  const at::Tensor map = reducer->get_local_used_map_on_device();
  const auto* counts = map.const_data_ptr<int>();
  const auto known = std::min<std::size_t>(order_.size(), map.numel());
  for (std::size_t variable = 0; variable < known; ++variable) {
    if (order_[variable] >= 0) used[order_[variable]] = counts[variable];
  }
  return used;
}

void UnusedGradients::put_back(lightcc::Gradients& gradients, const GradientWatch& watch,
                               const lightcc::Layout& parameters) {
  const std::vector<int> used = used_by();
  for (Left& left : std::exchange(left_, {})) {
    if (used[left.parameter] > 0) {
      gradients.used_elsewhere(left.parameter, std::move(left.values));
      continue;
    }
    const at::Tensor parameter = watch.parameter(left.parameter);
    const at::Tensor gradient = parameter.defined() ? parameter.grad() : at::Tensor();
    // Where it is a part of the bucket; else DDP has left it alone.
    if (gradient.defined() && gradient.is_view() && !left.values.empty()) {
      std::copy(left.values.begin(), left.values.end(), gradient.data_ptr<float>());
    }
  }
  for (const int parameter : parameters) {
    const int ranks = used[parameter];
    if (0 < ranks && ranks < gradients.world()) gradients.used_in_part(parameter);
  }
}

}  // namespace taco::pg
