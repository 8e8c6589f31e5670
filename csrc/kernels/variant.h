// What one instruction set offers, as a table of functions; dispatch.cc picks a table once, tests
// and benchmarks walk over all that the host can run. Private to kernels and their tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/kernels.h"

namespace taco::kernels {

using ScaleFn = void (*)(void* out, const void* in, std::size_t count, double factor);
using DivideFn = void (*)(void* out, const void* in, std::size_t count, std::int64_t n);
using Crc32cFn = std::uint32_t (*)(std::uint32_t crc, const void* data, std::size_t bytes);

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
};

struct Checksum {
  const char* name;
  Crc32cFn crc32c;
};

// Each is defined in the file named after it, where the compiler's target has it.
extern const Variant kPortableVariant;
extern const Variant kAvx2Variant;
extern const Variant kAvx512Variant;
extern const Variant kNeonVariant;
extern const Checksum kPortableChecksum;
extern const Checksum kSse42Checksum;
extern const Checksum kAvx512Checksum;
extern const Checksum kArmChecksum;

// Those this host can run, least first; [0] is the portable one.
std::span<const Variant* const> host_variants();
std::span<const Checksum* const> host_checksums();

}  // namespace taco::kernels
