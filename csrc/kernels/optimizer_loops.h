// The steps of kernels/optimizers.h over the vectors of one instruction set. `Ops` gives
//   Floats, Halves                  a pack of float32, as many of bfloat16
//   splat(float), fma(a, b, c), sqrt(a)
//   decode(Halves)
//   encode(Floats), where each NaN is the canonical one
//   round(Floats), to bfloat16 and back
//   kAheadOfUpdates                 bytes from what is updated to what is asked for
//
// Each rule is one optimizer: what becomes of one pack of parameters and its state.
//
// Included by files that are compiled for different instruction sets: everything is internal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/fp_mode.h"
#include "kernels/variant.h"
#include "kernels/vector_memory.h"

namespace taco::kernels {
namespace {

template <class Ops>
struct AdamRule {
  using Floats = typename Ops::Floats;
  static constexpr int kStates = 2;
  explicit AdamRule(const AdamStep& step)
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

  Floats operator()(Floats p, Floats g, Floats* state) const {
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
  explicit SgdRule(const SgdStep& step)
      : factor(Ops::splat(step.gradient_factor)),
        decay(Ops::splat(step.weight_decay)),
        momentum(Ops::splat(step.momentum)),
        weight(Ops::splat(step.weight)),
        lr(Ops::splat(step.minus_lr)),
        decays(step.weight_decay != 0),
        first(step.first),
        nesterov(step.nesterov) {}

  Floats operator()(Floats p, Floats g, [[maybe_unused]] Floats* state) const {
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
  explicit LionRule(const LionStep& step)
      : factor(Ops::splat(step.gradient_factor)),
        shrink(Ops::splat(step.shrink)),
        beta1(Ops::splat(step.beta1)),
        weight1(Ops::splat(step.weight1)),
        beta2(Ops::splat(step.beta2)),
        weight2(Ops::splat(step.weight2)),
        lr(Ops::splat(step.minus_lr)),
        one(Ops::splat(1)),
        shrinks(step.shrink != 1) {}

  Floats operator()(Floats p, Floats g, Floats* state) const {
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
inline Floats without_payload(Floats value) {
  return value == value ? value : Floats{} + __builtin_nanf("");
}

template <class Floats>
inline auto bits_of(Floats value) {
  using Words = std::conditional_t<sizeof(Floats) == sizeof(float), std::int32_t,
                                   WordsOf<static_cast<int>(sizeof(Floats))>>;
  Words bits;
  __builtin_memcpy(&bits, &value, sizeof bits);
  return bits;
}

// A master copy, or the parameter where that is not what its master copy rounds to.
template <class Ops>
inline typename Ops::Floats adopted(typename Ops::Floats master, typename Ops::Halves bf16) {
  const typename Ops::Floats parameter = Ops::decode(bf16);
  return bits_of(Ops::round(master)) == bits_of(parameter) ? master : parameter;
}

// The arrays that a step reads and writes.
template <class Gradient, int kStates>
struct Streams {
  float* parameter;
  std::uint16_t* bf16;
  const Gradient* gradient;
  float* state[kStates + 1];
};

template <class Ops, class Rule, class Gradient, bool kBf16>
void optimizer_pass(const Rule& rule, const Streams<Gradient, Rule::kStates>& streams,
                    std::size_t count) {
  const FlushMode mode;
  using Floats = typename Ops::Floats;
  static constexpr int kStates = Rule::kStates;  // so that no lambda captures it
  const Streams<Gradient, kStates> to = streams;
  each_pack<Floats>(
      count,
      [to](std::size_t i) {
        constexpr std::size_t kLines = 2 * kCacheLine;
        prefetch_to_write<kLines, Ops::kAheadOfUpdates>(to.parameter + i);
        for (int k = 0; k < kStates; ++k)
          prefetch_to_write<kLines, Ops::kAheadOfUpdates>(to.state[k] + i);
        if constexpr (kBf16) prefetch_to_write<kLines / 2, Ops::kAheadOfUpdates>(to.bf16 + i);
        prefetch<sizeof(Gradient) * kLines / sizeof(float)>(to.gradient + i);
      },
      [to, rule](std::size_t i, auto load, auto store) {
        Floats state[kStates + 1];
        for (int k = 0; k < kStates; ++k) state[k] = load(to.state[k] + i, Floats{});
        Floats gradient;
        if constexpr (std::is_same_v<Gradient, float>) {
          gradient = load(to.gradient + i, Floats{});
        } else {
          gradient = Ops::decode(load(to.gradient + i, typename Ops::Halves{}));
        }
        Floats own = load(to.parameter + i, Floats{});
        if constexpr (kBf16) {
          own = adopted<Ops>(own, load(to.bf16 + i, typename Ops::Halves{}));
        }
        const Floats p = without_payload(rule(own, gradient, state));
        for (int k = 0; k < kStates; ++k) store(to.state[k] + i, without_payload(state[k]));
        store(to.parameter + i, p);
        if constexpr (kBf16) store(to.bf16 + i, Ops::encode(p));
      });
}

template <class Ops, class Rule, class Gradient>
void optimizer_step(const Rule& rule, const ParameterRange& range, const Gradient* gradient,
                    float* first, float* second) {
  Streams<Gradient, Rule::kStates> streams{range.parameter, range.bf16_parameter, gradient, {}};
  if constexpr (Rule::kStates > 0) streams.state[0] = first;
  if constexpr (Rule::kStates > 1) streams.state[1] = second;
  if (range.bf16_parameter != nullptr) {
    optimizer_pass<Ops, Rule, Gradient, true>(rule, streams, range.count);
  } else {
    optimizer_pass<Ops, Rule, Gradient, false>(rule, streams, range.count);
  }
}

template <class Ops, class Rule, class Step>
void optimize(const Step& step, const ParameterRange& range, float* first, float* second) {
  const Rule rule(step);
  if (range.gradient != nullptr) {
    optimizer_step<Ops>(rule, range, range.gradient, first, second);
  } else {
    optimizer_step<Ops>(rule, range, range.bf16_gradient, first, second);
  }
}

template <class Ops>
void adopt_range(const std::uint16_t* bf16, float* master, std::size_t count) {
  using Floats = typename Ops::Floats;
  each_pack<Floats>(
      count, [](std::size_t) {},
      [bf16, master](std::size_t i, auto load, auto store) {
        const Floats own = load(master + i, Floats{});
        store(master + i, adopted<Ops>(own, load(bf16 + i, typename Ops::Halves{})));
      });
}

template <class Ops>
struct OptimizerLoops {
  static void adam(const AdamStep& step, const ParameterRange& range, float* first, float* second) {
    optimize<Ops, AdamRule<Ops>>(step, range, first, second);
  }
  static void sgd(const SgdStep& step, const ParameterRange& range, float* buffer) {
    if (buffer != nullptr) {
      optimize<Ops, SgdRule<Ops, true>>(step, range, buffer, nullptr);
    } else {
      optimize<Ops, SgdRule<Ops, false>>(step, range, nullptr, nullptr);
    }
  }
  static void lion(const LionStep& step, const ParameterRange& range, float* momentum) {
    optimize<Ops, LionRule<Ops>>(step, range, momentum, nullptr);
  }
};

template <class Ops>
constexpr Optimizers make_optimizers(const char* name) {
  using Loops = OptimizerLoops<Ops>;
  return {name, Loops::adam, Loops::sgd, Loops::lion, adopt_range<Ops>};
}

}  // namespace
}  // namespace taco::kernels
