// A step of Adam on a GPU, by the rule that the host has (kernels/optimizer_rules.h). Bytes that
// must move: 28 a parameter in float32; with bfloat16 parameters beside the master copy 32, with a
// bfloat16 gradient 2 less.
#pragma once

#include <array>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/arithmetic.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/optimizer_rules.h"

namespace taco::kernels::cuda {

template <class Gradient, bool kBf16>
struct AdamBody {
  static constexpr unsigned kWidest = 4;
  template <unsigned n>
  struct Loaded {
    Pack<float, n> parameter, first, second;
    Pack<Gradient, n> gradient;
    Pack<std::uint16_t, n> bf16;
  };

  AdamStep step;
  float* parameter;
  std::uint16_t* bf16;
  const Gradient* gradient;
  float* first;
  float* second;

  std::array<ArrayPlace, 5> arrays() const {
    return {place_of(parameter), place_of(gradient), place_of(first), place_of(second),
            place_of(bf16)};
  }
  template <unsigned n, class Exec>
  TACO_DEVICE Loaded<n> load(Exec& exec, std::size_t i) const {
    Loaded<n> loaded;
    loaded.parameter = exec.load(pack_of<n>(static_cast<const float*>(parameter + i)));
    loaded.first = exec.load(pack_of<n>(static_cast<const float*>(first + i)));
    loaded.second = exec.load(pack_of<n>(static_cast<const float*>(second + i)));
    loaded.gradient = exec.load(pack_of<n>(gradient + i));
    if constexpr (kBf16) {
      loaded.bf16 = exec.load(pack_of<n>(static_cast<const std::uint16_t*>(bf16 + i)));
    }
    return loaded;
  }
  template <unsigned n, class Exec>
  TACO_DEVICE void finish(Exec& exec, std::size_t i, const Loaded<n>& loaded) const {
    const AdamRule<OneFloat> rule(step);
    Loaded<n> result;
    TACO_UNROLL
    for (unsigned k = 0; k < n; ++k) {
      float own = loaded.parameter.at[k], gradient_of = 0;
      if constexpr (kBf16) own = adopted<OneFloat>(own, loaded.bf16.at[k]);
      if constexpr (std::is_same_v<Gradient, float>) {
        gradient_of = loaded.gradient.at[k];
      } else {
        gradient_of = bf16_to_float(loaded.gradient.at[k]);
      }
      float state[] = {loaded.first.at[k], loaded.second.at[k]};
      const float updated = canonical_nan<Scalar<float>>(rule(own, gradient_of, state));
      result.parameter.at[k] = updated;
      result.first.at[k] = canonical_nan<Scalar<float>>(state[0]);
      result.second.at[k] = canonical_nan<Scalar<float>>(state[1]);
      if constexpr (kBf16) result.bf16.at[k] = float_to_bf16(updated);
    }
    exec.store(pack_of<n>(parameter + i), result.parameter);
    exec.store(pack_of<n>(first + i), result.first);
    exec.store(pack_of<n>(second + i), result.second);
    if constexpr (kBf16) exec.store(pack_of<n>(bf16 + i), result.bf16);
  }
};

template <class Gradient, class Launcher>
Status adam_with(const Launcher& launch, const AdamStep& step, const ParameterRange& range,
                 const Gradient* gradient, float* first, float* second) {
  if (range.bf16_parameter != nullptr) {
    const AdamBody<Gradient, true> body{step,     range.parameter, range.bf16_parameter,
                                        gradient, first,           second};
    return launch_elementwise<2>(launch, body, range.count);
  }
  const AdamBody<Gradient, false> body{step, range.parameter, nullptr, gradient, first, second};
  return launch_elementwise<2>(launch, body, range.count);
}

template <class Launcher>
Status adam_on(const Launcher& launch, const AdamStep& step, const ParameterRange& range,
               float* first, float* second) {
  if ((range.gradient == nullptr) == (range.bf16_gradient == nullptr)) {
    return invalid("a step of Adam needs one gradient, in float32 or in bfloat16");
  }
  if (range.gradient != nullptr) {
    return adam_with(launch, step, range, range.gradient, first, second);
  }
  return adam_with(launch, step, range, range.bf16_gradient, first, second);
}

}  // namespace taco::kernels::cuda
