// Steps of optimizers over float32 parameters, or over bfloat16 parameters with a float32 master
// copy: one pass over the memory, with all arithmetic fused into it.
//
// The same bits on every instruction set of a processor, and whatever ranges the parameters are cut
// into: each element takes the same operations, fma() among them, whichever vector or remainder it
// falls into. Denormals count as 0 while a step runs, as operands and as results (the caller's mode
// is restored), so that state which fades away costs no time. A NaN becomes the canonical one.
//
// The constants of a step are found once, in double, by adam_step() and its like; a step's
// functions may run on any number of threads, each with its own ranges.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.h"

namespace taco::kernels {

// Parameters and their gradient. No two arrays overlap. They need no alignment beyond their
// elements'.
struct ParameterRange {
  std::size_t count = 0;
  float* parameter = nullptr;  // the parameters, or their master copy
  // Unless null: is written, the new parameters rounded. Where such a parameter is not what its
  // master copy rounds to, somebody has changed it, and before the step the master copy becomes it.
  std::uint16_t* bf16_parameter = nullptr;
  const float* gradient = nullptr;  // one of these two is null
  const std::uint16_t* bf16_gradient = nullptr;
};

// Adam: Kingma and Ba, "Adam: A Method for Stochastic Optimization", 2014; with decoupled weight
// decay: Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2017. The defaults are
// those of torch.optim.AdamW but for the decay.
struct AdamOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  bool decoupled = true;  // AdamW; false: the decay is added to the gradient
};

// The constants of step t, counted from 1:
//   g = gradient_factor * gradient
//   p = shrink * p                      where the decay is decoupled and not 0
//   g = fma(weight_decay, p, g)         where it is not decoupled and not 0
//   m = fma(w1, g - m, m)               where w1 < 0.5, else fma(w1 - 1, g - m, g)
//   v = fma(beta2, v, (w2 * g) * g)
//   p = fma(minus_step_size, m / fma(sqrt(v), inverse_correction, eps), p)
struct AdamStep {
  float gradient_factor;
  float shrink;         // 1 - lr * weight_decay; 1: none
  float weight_decay;   // 0: none
  float first_weight;   // w1 = 1 - beta1
  float second_weight;  // w2 = 1 - beta2
  float beta2;
  float inverse_correction;  // 1 / sqrt(1 - beta2^t)
  float minus_step_size;     // -lr / (1 - beta1^t)
  float eps;
};

// The decay is added to the gradient. torch.optim.SGD.
struct SgdOptions {
  double lr = 1e-3;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;
};

//   g = gradient_factor * gradient
//   g = fma(weight_decay, p, g)         where the decay is not 0
//   b = g in the first step, else fma(momentum, b, weight * g)
//   g = b, or fma(momentum, b, g) with nesterov
//   p = fma(minus_lr, g, p)
// Without momentum there is no b.
struct SgdStep {
  float gradient_factor;
  float weight_decay;
  float momentum;
  float weight;  // 1 - dampening
  float minus_lr;
  bool first;
  bool nesterov;
};

// Lion: Chen et al., "Symbolic Discovery of Optimization Algorithms", 2023.
struct LionOptions {
  double lr = 1e-4;
  double beta1 = 0.9;
  double beta2 = 0.99;
  double weight_decay = 0;
};

//   g = gradient_factor * gradient
//   p = shrink * p                      where the decay is not 0
//   c = fma(beta1, m, (1 - beta1) * g)
//   p = fma(minus_lr, sign(c), p)       sign(0) = 0, of NaN NaN
//   m = fma(beta2, m, (1 - beta2) * g)
struct LionStep {
  float gradient_factor;
  float shrink;
  float beta1, weight1;
  float beta2, weight2;
  float minus_lr;
};

// An error that names the option and its value where an optimizer cannot run with it.
Status check(const AdamOptions& options);
Status check(const SgdOptions& options);
Status check(const LionOptions& options);

// `step` counts from 1. Every gradient is multiplied by `gradient_factor` first: 1 / scale of a
// gradient scaler, a clipping factor, or -1 to maximize.
AdamStep adam_step(const AdamOptions& options, std::int64_t step, double gradient_factor = 1);
SgdStep sgd_step(const SgdOptions& options, std::int64_t step, double gradient_factor = 1);
LionStep lion_step(const LionOptions& options, double gradient_factor = 1);

// A step over bfloat16 parameters begins with this: a master copy that its parameter is not rounded
// from becomes that parameter. All else stays as it is, denormals too.
void adopt_parameters(const std::uint16_t* bf16_parameter, float* master, std::size_t count);

// `first` and `second` are the moments m and v, 0 before the first step.
void adam(const AdamStep& step, const ParameterRange& range, float* first, float* second);
// `buffer` is b, and null exactly where step.momentum is 0. It may hold anything before the first
// step.
void sgd(const SgdStep& step, const ParameterRange& range, float* buffer);
// `momentum` is m, 0 before the first step.
void lion(const LionStep& step, const ParameterRange& range, float* momentum);

}  // namespace taco::kernels
