// Gradients that are on pages between a backward pass and the step.
#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "edge/without_gil.h"
#include "zerocache/torch/store.h"

namespace taco::zerocache {

Status Store::keep_gradients() {
  TACO_RETURN_IF_ERROR(usable());
  if (!stream_ || gradient_pages_) return invalid("this cache has no optimizer, or keeps them");
  Result<GradientPages> pages = GradientPages();
  mover_->change_layout([&] { pages = GradientPages::append_to(layout_, stateful_); });
  if (!pages.ok()) return pages.status();
  TACO_RETURN_IF_ERROR(check_numbers());
  gradient_pages_ = std::move(pages).value();
  stream_->use_gradients(&*gradient_pages_);
  return Status();
}

Status Store::keep_gradient(const at::Tensor& parameter, const at::Tensor& gradient) {
  TACO_RETURN_IF_ERROR(usable());
  if (!gradient_pages_) return invalid("this cache keeps no gradients");
  std::vector<at::Tensor> copies;
  auto update = update_of({parameter, gradient, {}}, copies);
  if (!update.ok()) return update.status();
  if (gradient.scalar_type() != parameter.scalar_type()) {
    return invalid(find(parameter)->storage->described() +
                   " has a gradient of another dtype than its own");
  }
  const std::span bytes(static_cast<const std::byte*>(update->gradient), gradient.nbytes());
  leaving_.let_go();
  Status kept;
  {
    const WithoutGil others_run;
    kept = gradient_pages_->keep(*mover_, layout_, update->tensor, bytes);
  }
  // A gradient that autograd still has leaves with the next one, or at the end of the pass.
  if (kept.ok()) leaving_.add(gradient.detach());
  return kept;
}

Status Store::read_gradient(const at::Tensor& parameter, const at::Tensor& to) {
  auto entry = placed(parameter);
  if (!entry.ok()) return entry.status();
  const bool alike = to.scalar_type() == parameter.scalar_type() && has_bytes(to) &&
                     to.sizes() == parameter.sizes() && to.strides() == parameter.strides();
  if (!alike || !gradient_pages_ || !gradient_pages_->holds((*entry)->tensor)) {
    return invalid((*entry)->storage->described() + " has no gradient like that on pages");
  }
  const std::span bytes(static_cast<std::byte*>(to.mutable_data_ptr()), to.nbytes());
  const WithoutGil others_run;
  return gradient_pages_->read(*mover_, layout_, (*entry)->tensor, bytes);
}

Status Store::drop_gradients() {
  TACO_RETURN_IF_ERROR(usable());
  if (spread_) clear_averaged();
  if (!gradient_pages_) return Status();
  const WithoutGil others_run;
  return gradient_pages_->drop(*mover_);
}

}  // namespace taco::zerocache
