// Each rule is one optimizer of kernels/optimizers.h: what becomes of one pack of parameters and
// its state. `Ops` gives
//   Floats, Halves                  a pack of float32, as many of bfloat16
//   splat(float), fma(a, b, c), sqrt(a)
//   decode(Halves)
//   round(Floats), to bfloat16 and back
//
// Included by files that are compiled for different instruction sets: everything is internal.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/operations.h"
#include "kernels/optimizers.h"

namespace taco::kernels {
namespace {

template <class Ops>
struct AdamRule {
  using Floats = typename Ops::Floats;
  static constexpr int kStates = 2;
  constexpr explicit AdamRule(const AdamStep& step)
      : factor(Ops::splat(step.gradient_factor)),
        shrink(Ops::splat(step.shrink)),
        decay(Ops::splat(step.weight_decay)),
        // There are two ways to go a share of the way from m to g; this is the one that ends at g
        // exactly where the share is 1, as torch's lerp does.
        share(Ops::splat(step.first_weight < 0.5f ? step.first_weight : step.first_weight - 1)),
        weight(Ops::splat(step.second_weight)),
        beta2(Ops::splat(step.beta2)),
        correction(Ops::splat(step.inverse_correction)),
        eps(Ops::splat(step.eps)),
        step_size(Ops::splat(step.minus_step_size)),
        from_gradient(step.first_weight >= 0.5f),
        shrinks(step.shrink != 1),
        decays(step.weight_decay != 0) {}

  constexpr Floats operator()(Floats p, Floats g, Floats* state) const {
    g = g * factor;
    if (shrinks) p = p * shrink;
    if (decays) g = Ops::fma(decay, p, g);
    const Floats m = Ops::fma(share, g - state[0], from_gradient ? g : state[0]);
    const Floats v = Ops::fma(beta2, state[1], weight * g * g);
    state[0] = m;
    state[1] = v;
    return Ops::fma(step_size, m / Ops::fma(Ops::sqrt(v), correction, eps), p);
  }

  Floats factor, shrink, decay, share, weight, beta2, correction, eps, step_size;
  bool from_gradient, shrinks, decays;
};

template <class Ops, bool kMomentum>
struct SgdRule {
  using Floats = typename Ops::Floats;
  static constexpr int kStates = kMomentum ? 1 : 0;
  constexpr explicit SgdRule(const SgdStep& step)
      : factor(Ops::splat(step.gradient_factor)),
        decay(Ops::splat(step.weight_decay)),
        momentum(Ops::splat(step.momentum)),
        weight(Ops::splat(step.weight)),
        lr(Ops::splat(step.minus_lr)),
        decays(step.weight_decay != 0),
        first(step.first),
        nesterov(step.nesterov) {}

  constexpr Floats operator()(Floats p, Floats g, [[maybe_unused]] Floats* state) const {
    g = g * factor;
    if (decays) g = Ops::fma(decay, p, g);
    if constexpr (kMomentum) {
      const Floats b = first ? g : Ops::fma(momentum, state[0], weight * g);
      state[0] = b;
      g = nesterov ? Ops::fma(momentum, b, g) : b;
    }
    return Ops::fma(lr, g, p);
  }

  Floats factor, decay, momentum, weight, lr;
  bool decays, first, nesterov;
};

template <class Ops>
struct LionRule {
  using Floats = typename Ops::Floats;
  static constexpr int kStates = 1;
  constexpr explicit LionRule(const LionStep& step)
      : factor(Ops::splat(step.gradient_factor)),
        shrink(Ops::splat(step.shrink)),
        beta1(Ops::splat(step.beta1)),
        weight1(Ops::splat(step.weight1)),
        beta2(Ops::splat(step.beta2)),
        weight2(Ops::splat(step.weight2)),
        lr(Ops::splat(step.minus_lr)),
        one(Ops::splat(1)),
        shrinks(step.shrink != 1) {}

  constexpr Floats operator()(Floats p, Floats g, Floats* state) const {
    g = g * factor;
    if (shrinks) p = p * shrink;
    const Floats m = state[0];
    const Floats c = Ops::fma(beta1, m, weight1 * g);
    state[0] = Ops::fma(beta2, m, weight2 * g);
    const Floats negative = c < Floats{} ? -one : c;  // 0 and NaN stay what they are
    return Ops::fma(lr, c > Floats{} ? one : negative, p);
  }

  Floats factor, shrink, beta1, weight1, beta2, weight2, lr, one;
  bool shrinks;
};

template <class Floats>
constexpr Floats without_payload(Floats value) {
  return value == value ? value : Floats{} + __builtin_nanf("");
}

template <class Floats>
constexpr auto bits_of(Floats value) {
  using Words = std::conditional_t<sizeof(Floats) == sizeof(float), std::int32_t,
                                   typename Vector<std::int32_t, sizeof(Floats)>::Values>;
  Words bits;
  __builtin_memcpy(&bits, &value, sizeof bits);
  return bits;
}

// A master copy, or the parameter where that is not what its master copy rounds to.
template <class Ops>
constexpr typename Ops::Floats adopted(typename Ops::Floats master, typename Ops::Halves bf16) {
  const typename Ops::Floats parameter = Ops::decode(bf16);
  return bits_of(Ops::round(master)) == bits_of(parameter) ? master : parameter;
}

}  // namespace
}  // namespace taco::kernels
