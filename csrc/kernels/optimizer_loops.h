// The steps of kernels/optimizers.h over the vectors of one instruction set. `Ops` gives
//   all that the rules need         kernels/optimizer_rules.h
//   encode(Floats), where each NaN is the canonical one
//   kAheadOfUpdates                 bytes from what is updated to what is asked for
//
// Included by files that are compiled for different instruction sets: everything is internal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/fp_mode.h"
#include "kernels/optimizer_rules.h"
#include "kernels/variant.h"
#include "kernels/vector_memory.h"

namespace taco::kernels {
namespace {

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
