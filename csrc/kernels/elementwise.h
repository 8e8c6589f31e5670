// Scaling and division: plain loops over unaligned elements that the compiler
// vectorizes for whatever instruction set the including file is compiled for.
//
// Included by files that are compiled for different instruction sets: everything is internal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include "kernels/fp_mode.h"
#include "kernels/operations.h"

// Element i depends on element i alone, so `out` may be an input: what the compiler cannot know.
#if defined(__clang__)
#define TACO_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define TACO_INDEPENDENT _Pragma("GCC ivdep")
#endif

namespace taco::kernels {
namespace {

template <class T>
inline T load(const void* base, std::size_t index) {
  T value;
  __builtin_memcpy(&value, static_cast<const unsigned char*>(base) + index * sizeof(T), sizeof(T));
  return value;
}
template <class T>
inline void store(void* base, std::size_t index, T value) {
  __builtin_memcpy(static_cast<unsigned char*>(base) + index * sizeof(T), &value, sizeof(T));
}

template <class T>
void scale_floats(void* out, const void* in, std::size_t count, double factor) {
  const FpMode mode;
  const T by = static_cast<T>(factor);
  TACO_INDEPENDENT
  for (std::size_t i = 0; i < count; ++i) {
    store<T>(out, i, canonical_nan<Scalar<T>>(load<T>(in, i) * by));
  }
}

template <class T>
void divide_floats(void* out, const void* in, std::size_t count, std::int64_t n) {
  const FpMode mode;
  const T by = static_cast<T>(n);
  TACO_INDEPENDENT
  for (std::size_t i = 0; i < count; ++i) {
    store<T>(out, i, canonical_nan<Scalar<T>>(load<T>(in, i) / by));
  }
}

// Numbers of up to 32 bits divide exactly in double: a quotient that is not whole differs from the
// next whole number by at least 1/n, far more than the rounding of a 53-bit quotient.
template <class T>
void divide_integers(void* out, const void* in, std::size_t count, std::int64_t n) {
  const FpMode mode;
  if (n == -1) {  // the least number has no negative: it wraps to itself
    TACO_INDEPENDENT
    for (std::size_t i = 0; i < count; ++i) {
      store<T>(out, i, wrapping_multiply<Scalar<T>>(load<T>(in, i), static_cast<T>(-1)));
    }
  } else if constexpr (sizeof(T) < 8) {
    const auto by = static_cast<double>(n);
    TACO_INDEPENDENT
    for (std::size_t i = 0; i < count; ++i) {
      store<T>(out, i,
               static_cast<T>(static_cast<std::int32_t>(static_cast<double>(load<T>(in, i)) / by)));
    }
  } else {
    for (std::size_t i = 0; i < count; ++i) store<T>(out, i, static_cast<T>(load<T>(in, i) / n));
  }
}

// The conversion of a double that does not fit is undefined in C++: here it saturates, NaN is 0.
template <class T>
inline T saturated(double value) {
  constexpr auto kLeast = static_cast<double>(std::numeric_limits<T>::min());
  constexpr auto kMost = static_cast<double>(std::numeric_limits<T>::max());
  if (value >= kMost) return std::numeric_limits<T>::max();
  if (value <= kLeast) return std::numeric_limits<T>::min();
  return value == value ? static_cast<T>(value) : T{0};
}

template <class T>
void scale_integers(void* out, const void* in, std::size_t count, double factor) {
  const FpMode mode;
  const IntegerScale scale = integer_scale(factor);
  if (scale.by == IntegerScale::By::kQuotient)
    return divide_integers<T>(out, in, count, scale.whole);
  if (scale.by == IntegerScale::By::kProduct) {
    TACO_INDEPENDENT
    for (std::size_t i = 0; i < count; ++i) {
      store<T>(out, i, wrapping_multiply<Scalar<T>>(load<T>(in, i), static_cast<T>(scale.whole)));
    }
    return;
  }
  for (std::size_t i = 0; i < count; ++i) {
    store<T>(out, i, saturated<T>(static_cast<double>(load<T>(in, i)) * factor));
  }
}

// float16 and bfloat16 pass through a block of floats that stays in the first cache.
inline constexpr std::size_t kHalfBlock = 512;

template <class Halves, class Function>
void through_floats(void* out, const void* in, std::size_t count, Function function) {
  float block[kHalfBlock];
  for (std::size_t start = 0; start < count; start += kHalfBlock) {
    const std::size_t n = count - start < kHalfBlock ? count - start : kHalfBlock;
    Halves::to_floats(block, static_cast<const unsigned char*>(in) + 2 * start, n);
    for (std::size_t i = 0; i < n; ++i) block[i] = function(block[i]);
    Halves::from_floats(static_cast<unsigned char*>(out) + 2 * start, block, n);
  }
}
template <class Halves>
void scale_halves(void* out, const void* in, std::size_t count, double factor) {
  const FpMode mode;
  const auto by = static_cast<float>(factor);
  through_floats<Halves>(out, in, count,
                         [by](float x) { return canonical_nan<Scalar<float>>(x * by); });
}
template <class Halves>
void divide_halves(void* out, const void* in, std::size_t count, std::int64_t n) {
  const FpMode mode;
  const auto by = static_cast<float>(n);
  through_floats<Halves>(out, in, count,
                         [by](float x) { return canonical_nan<Scalar<float>>(x / by); });
}

}  // namespace
}  // namespace taco::kernels
