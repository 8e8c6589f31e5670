// The functions of one instruction set, as a table; dispatch.cc picks a table once, tests and
// benchmarks walk over all that the host can run. Private to kernels and their tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/kernels.h"
#include "kernels/optimizers.h"

namespace taco::kernels {

using ScaleFn = void (*)(void* out, const void* in, std::size_t count, double factor);
using DivideFn = void (*)(void* out, const void* in, std::size_t count, std::int64_t n);
using Crc32cFn = std::uint32_t (*)(std::uint32_t crc, const void* data, std::size_t bytes);

// Elements under consideration in a selection, in order: their values' bits and where they are. The
// arrays have room for a vector more than is asked of them (kSelectSlack).
struct Candidates {
  std::uint32_t* bits;
  std::uint32_t* indices;
};
inline constexpr std::size_t kSelectSlack = 16;

// The sum that a selection is made from: acc = residual + gradient, or residual + (factor *
// momentum + gradient).
struct Addends {
  const float* residual;
  const float* gradient;  // null: nothing
  const float* momentum;  // null: none
  float factor;
};

struct Variant {
  const char* name;
  ReduceFn reduce[kReduceOps][kDtypes];  // null: no such pair
  ScaleFn scale[kDtypes];                // null for bool
  DivideFn divide[kDtypes];
  void (*f32_to_f16)(std::uint16_t*, const float*, std::size_t);
  void (*f16_to_f32)(float*, const std::uint16_t*, std::size_t);
  void (*f32_to_bf16)(std::uint16_t*, const float*, std::size_t);
  void (*bf16_to_f32)(float*, const std::uint16_t*, std::size_t);
  void (*accumulate_f16)(float*, const std::uint16_t*, std::size_t);
  void (*accumulate_bf16)(float*, const std::uint16_t*, std::size_t);
  // Appends to `to` each acc[i], first <= i < first + count, whose magnitude is above `threshold`
  // (a float's bits without the sign; -1: all), and returns how many they were.
  std::size_t (*collect)(const Candidates& to, const Addends& from, std::size_t first,
                         std::size_t count, std::int32_t threshold);
  std::size_t (*count_above)(const std::uint32_t* bits, std::size_t count, std::int32_t threshold);
  // Keeps those above the threshold and the first `ties` of those at it; how many are left.
  std::size_t (*keep_above)(const Candidates& all, std::size_t count, std::int32_t threshold,
                            std::size_t ties);
  // momentum = factor * momentum + gradient, residual += momentum.
  void (*add_momentum)(float* residual, float* momentum, const float* gradient, float factor,
                       std::size_t count);
  float (*largest_finite)(const float*, std::size_t);
  // By a factor, 2^exponent or 2^-exponent. The first returns the largest finite magnitude of the
  // `next` elements that follow the `count` it converts.
  float (*f32_to_f16_scaled)(std::uint16_t* out, const float* in, std::size_t count, float factor,
                             std::size_t next);
  void (*f16_to_f32_scaled)(float*, const std::uint16_t*, std::size_t, float);
  void (*accumulate_f16_scaled)(float*, const float*, const std::uint16_t*, std::size_t, float);
};

struct Checksum {
  const char* name;
  std::size_t
      rung;  // the least of host_variants(), by number, whose instructions have these beside
  Crc32cFn crc32c;
};

struct Optimizers {
  const char* name;
  void (*adam)(const AdamStep&, const ParameterRange&, float* first, float* second);
  void (*sgd)(const SgdStep&, const ParameterRange&, float* buffer);
  void (*lion)(const LionStep&, const ParameterRange&, float* momentum);
  void (*adopt)(const std::uint16_t* bf16_parameter, float* master, std::size_t count);
};

// Each is defined in the file named after it, where the compiler's target has it.
extern const Variant kPortableVariant;
extern const Variant kAvx2Variant;
extern const Variant kAvx512Variant;
extern const Variant kNeonVariant;
extern const Checksum kPortableChecksum;
extern const Checksum kSse42Checksum;
extern const Checksum kAvx2Checksum;
extern const Checksum kAvx512Checksum;
extern const Checksum kArmChecksum;
extern const Optimizers kPortableOptimizers;
extern const Optimizers kAvx2Optimizers;
extern const Optimizers kAvx512Optimizers;

// Those this host can run, least first; [0] is the portable one.
std::span<const Variant* const> host_variants();
std::span<const Checksum* const> host_checksums();
std::span<const Optimizers* const> host_optimizers();
const Variant& chosen_variant();
const Optimizers& chosen_optimizers();

class SelectScratch;
// select_largest_momentum() by a variant; select_largest() without `momentum`.
bool select_with(const Variant& variant, float* residual, float* momentum, const float* gradient,
                 float factor, std::size_t n, std::size_t k, float* values, std::uint32_t* indices,
                 SelectScratch& scratch, float* taken_momentum = nullptr);

}  // namespace taco::kernels
