#include "kernels/optimizers.h"

#include <cmath>
#include <cstdio>
#include <string>

#include "base/assert.h"
#include "kernels/variant.h"

namespace taco::kernels {
namespace {

Status refuse(const char* optimizer, const char* option, double value, const char* wanted) {
  char text[160];
  std::snprintf(text, sizeof text, "%s: %s is %g, but has to be %s", optimizer, option, value,
                wanted);
  return Status(Code::kInvalidArgument, text);
}
// NaN is none of these.
Status check_not_negative(const char* optimizer, const char* option, double value) {
  if (value >= 0 && std::isfinite(value)) return Status();
  return refuse(optimizer, option, value, "at least 0 and finite");
}
Status check_share(const char* optimizer, const char* option, double value) {
  if (value >= 0 && value < 1) return Status();
  return refuse(optimizer, option, value, "at least 0 and below 1");
}

float narrow(double value) { return static_cast<float>(value); }

}  // namespace

Status check(const AdamOptions& options) {
  const char* const name = options.decoupled ? "AdamW" : "Adam";
  TACO_RETURN_IF_ERROR(check_not_negative(name, "lr", options.lr));
  TACO_RETURN_IF_ERROR(check_share(name, "beta1", options.beta1));
  TACO_RETURN_IF_ERROR(check_share(name, "beta2", options.beta2));
  TACO_RETURN_IF_ERROR(check_not_negative(name, "eps", options.eps));
  return check_not_negative(name, "weight_decay", options.weight_decay);
}

Status check(const SgdOptions& options) {
  TACO_RETURN_IF_ERROR(check_not_negative("SGD", "lr", options.lr));
  TACO_RETURN_IF_ERROR(check_not_negative("SGD", "momentum", options.momentum));
  TACO_RETURN_IF_ERROR(check_not_negative("SGD", "weight_decay", options.weight_decay));
  if (!std::isfinite(options.dampening)) {
    return refuse("SGD", "dampening", options.dampening, "finite");
  }
  if (options.nesterov && options.momentum == 0) {
    return refuse("SGD with nesterov", "momentum", options.momentum, "above 0");
  }
  if (options.nesterov && options.dampening != 0) {
    return refuse("SGD with nesterov", "dampening", options.dampening, "0");
  }
  return Status();
}

Status check(const LionOptions& options) {
  TACO_RETURN_IF_ERROR(check_not_negative("Lion", "lr", options.lr));
  TACO_RETURN_IF_ERROR(check_share("Lion", "beta1", options.beta1));
  TACO_RETURN_IF_ERROR(check_share("Lion", "beta2", options.beta2));
  return check_not_negative("Lion", "weight_decay", options.weight_decay);
}

AdamStep adam_step(const AdamOptions& options, std::int64_t step, double gradient_factor) {
  TACO_ASSERT(step >= 1);
  const auto t = static_cast<double>(step);
  const double first_correction = 1 - std::pow(options.beta1, t);
  const double second_correction = 1 - std::pow(options.beta2, t);
  const double shrink = options.decoupled ? 1 - options.lr * options.weight_decay : 1;
  return {.gradient_factor = narrow(gradient_factor),
          .shrink = narrow(shrink),
          .weight_decay = options.decoupled ? 0 : narrow(options.weight_decay),
          .first_weight = narrow(1 - options.beta1),
          .second_weight = narrow(1 - options.beta2),
          .beta2 = narrow(options.beta2),
          .inverse_correction = narrow(1 / std::sqrt(second_correction)),
          .minus_step_size = narrow(-options.lr / first_correction),
          .eps = narrow(options.eps)};
}

SgdStep sgd_step(const SgdOptions& options, std::int64_t step, double gradient_factor) {
  TACO_ASSERT(step >= 1);
  return {.gradient_factor = narrow(gradient_factor),
          .weight_decay = narrow(options.weight_decay),
          .momentum = narrow(options.momentum),
          .weight = narrow(1 - options.dampening),
          .minus_lr = narrow(-options.lr),
          .first = step == 1,
          .nesterov = options.nesterov};
}

LionStep lion_step(const LionOptions& options, double gradient_factor) {
  return {.gradient_factor = narrow(gradient_factor),
          .shrink = narrow(1 - options.lr * options.weight_decay),
          .beta1 = narrow(options.beta1),
          .weight1 = narrow(1 - options.beta1),
          .beta2 = narrow(options.beta2),
          .weight2 = narrow(1 - options.beta2),
          .minus_lr = narrow(-options.lr)};
}

void adopt_parameters(const std::uint16_t* bf16_parameter, float* master, std::size_t count) {
  chosen_optimizers().adopt(bf16_parameter, master, count);
}

void adam(const AdamStep& step, const ParameterRange& range, float* first, float* second) {
  TACO_ASSERT((range.gradient == nullptr) != (range.bf16_gradient == nullptr));
  chosen_optimizers().adam(step, range, first, second);
}
void sgd(const SgdStep& step, const ParameterRange& range, float* buffer) {
  TACO_ASSERT((range.gradient == nullptr) != (range.bf16_gradient == nullptr));
  TACO_ASSERT((buffer == nullptr) == (step.momentum == 0));
  chosen_optimizers().sgd(step, range, buffer);
}
void lion(const LionStep& step, const ParameterRange& range, float* momentum) {
  TACO_ASSERT((range.gradient == nullptr) != (range.bf16_gradient == nullptr));
  chosen_optimizers().lion(step, range, momentum);
}

}  // namespace taco::kernels
