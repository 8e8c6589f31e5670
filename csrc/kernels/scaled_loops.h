// Conversions between float32 and float16 that multiply by a factor on the way. `Halves` converts
// one pack of floats `P` (kernels/operations.h): decode(halves) -> floats, encode(floats) ->
// halves.
//
// Included by files that are compiled for different instruction sets: everything is internal.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/elementwise.h"
#include "kernels/vector_memory.h"

namespace taco::kernels {
namespace {

inline float largest_finite_of(const float* in, std::size_t count) {
  constexpr std::int32_t kMagnitude = 0x7FFF'FFFF, kInfinity = 0x7F80'0000;
  std::int32_t largest = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::int32_t magnitude = load<std::int32_t>(in, i) & kMagnitude;
    const std::int32_t counted = magnitude < kInfinity ? magnitude : 0;
    largest = counted > largest ? counted : largest;
  }
  return __builtin_bit_cast(float, largest);
}

template <class Halves, class P>
struct ScaledLoops {
  using Floats = typename P::Values;
  using Packed = typename Halves::Halves;
  static constexpr std::size_t kLanes = sizeof(Floats) / sizeof(float);
  // Whole lines of both types at a time, so that each is asked for once.
  static constexpr std::size_t kStep = 2 * kCacheLine / sizeof(float);

  // work(i, load, store) for each pack of elements from i on, `load` and `store` as for a part of
  // it where the array ends within; ahead(i) once for kStep elements.
  template <class Ahead, class Work>
  static void each(std::size_t count, Ahead ahead, Work work) {
    const FpMode mode;
    const auto whole = [](const auto* from, auto value) {
      return load_vector<decltype(value)>(from);
    };
    const auto put = [](auto* to, auto value) { store_vector(to, value); };
    std::size_t i = 0;
    for (; i + kStep <= count; i += kStep) {
      ahead(i);
      for (std::size_t j = i; j < i + kStep; j += kLanes) work(j, whole, put);
    }
    for (; i + kLanes <= count; i += kLanes) work(i, whole, put);
    if (const std::size_t rest = count - i; rest > 0) {
      work(
          i,
          [rest](const auto* from, auto value) {
            return load_part<decltype(value)>(from, rest * sizeof(*from));
          },
          [rest](auto* to, auto value) { store_part(to, value, rest * sizeof(*to)); });
    }
  }

  static Floats scaled(Packed halves, Floats by) { return Halves::decode(halves) * by; }

  static void encode(std::uint16_t* out, const float* in, std::size_t count, float factor) {
    const Floats by = P::splat(factor);
    each(
        count, [in](std::size_t i) { prefetch_ahead<2 * kCacheLine>(in + i); },
        [out, in, by](std::size_t i, auto load, auto store) {
          store(out + i, Halves::encode(canonical_nan<P>(load(in + i, Floats{}) * by)));
        });
  }

  static void decode(float* out, const std::uint16_t* in, std::size_t count, float factor) {
    const Floats by = P::splat(factor);
    each(
        count, [in](std::size_t i) { prefetch_ahead<kCacheLine>(in + i); },
        [out, in, by](std::size_t i, auto load, auto store) {
          store(out + i, canonical_nan<P>(scaled(load(in + i, Packed{}), by)));
        });
  }

  static void accumulate(float* out, const float* acc, const std::uint16_t* in, std::size_t count,
                         float factor) {
    const Floats by = P::splat(factor);
    each(
        count,
        [acc, in](std::size_t i) {
          prefetch_ahead<2 * kCacheLine>(acc + i);
          prefetch_ahead<kCacheLine>(in + i);
        },
        [out, acc, in, by](std::size_t i, auto load, auto store) {
          const Floats addend = scaled(load(in + i, Packed{}), by);
          store(out + i, Sum::apply<P>(load(acc + i, Floats{}), addend));
        });
  }
};

}  // namespace
}  // namespace taco::kernels
