// Arithmetic on arrays. One portable implementation and one thin file per ISA, chosen once at run
// time (see dispatch.cc). Every function sets round-to-nearest without flush-to-zero while it runs
// and then restores the caller's mode, so that results never depend on the thread that runs it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.h"

namespace taco::kernels {

enum class Dtype : std::uint8_t {
  kF32,
  kF64,
  kF16,
  kBF16,
  kI8,
  kU8,
  kI16,
  kI32,
  kI64,
  kBool,
  kC64,
  kC128,
  kC32,
};
inline constexpr int kDtypes = 13;

enum class ReduceOp : std::uint8_t {
  kSum,
  kAvg,
  kProduct,
  kMin,
  kMax,
  kBand,
  kBor,
  kBxor,
  kPremulSum,
};
inline constexpr int kReduceOps = 9;

std::size_t size_of(Dtype dtype);
const char* name_of(Dtype dtype);  // "float32", ...: torch's names
const char* name_of(ReduceOp op);  // "SUM", ...

// out[i] = a[i] op b[i] for `count` elements. `out` may be `a` or `b` itself, never a shifted
// overlap. Pointers need no alignment beyond 1. kAvg and kPremulSum add: their factor is applied
// by scale().
using ReduceFn = void (*)(void* out, const void* a, const void* b, std::size_t count);

// function(out, a, b, count) with prefetching: for operands that may not be in the caches.
void reduce(ReduceFn function, void* out, const void* a, const void* b, std::size_t count,
            std::size_t element_bytes);

// Null where the pair has no meaning; check_supported() then says what is supported.
ReduceFn reduce_function(ReduceOp op, Dtype dtype);
Status check_supported(ReduceOp op, Dtype dtype);

// out[i] = in[i] * factor (kPremulSum before, kAvg after the sum, as 1/world size). Floating types
// round once; integers divide exactly as truncation when factor is 1/n (see divide()).
void scale(Dtype dtype, void* out, const void* in, std::size_t count, double factor);
// out[i] = in[i] / n, integers truncated toward zero: the last step of kAvg.
void divide(Dtype dtype, void* out, const void* in, std::size_t count, std::int64_t n);

// Conversions, nearest even, NaN stays NaN, overflow becomes Inf.
void f32_to_f16(std::uint16_t* out, const float* in, std::size_t count);
void f16_to_f32(float* out, const std::uint16_t* in, std::size_t count);
void f32_to_bf16(std::uint16_t* out, const float* in, std::size_t count);
void bf16_to_f32(float* out, const std::uint16_t* in, std::size_t count);

// acc[i] += float(in[i]) where the wire type differs from the buffer's type.
void accumulate_f16_into_f32(float* acc, const std::uint16_t* in, std::size_t count);
void accumulate_bf16_into_f32(float* acc, const std::uint16_t* in, std::size_t count);

// A copy (no overlap) with prefetching: for memory that may not be in the caches.
void copy(void* to, const void* from, std::size_t bytes);
// The same for a destination that is not read soon: bypasses the caches and does not load it first.
void copy_cold(void* to, const void* from, std::size_t bytes);
// The same for a destination that somebody reads meanwhile: each aligned word of 8 bytes appears
// whole, and no byte before those at lower addresses. (`to` and `from` are any.)
void copy_in_order(void* to, const void* from, std::size_t bytes);

// CRC32C (Castagnoli), chainable: crc32c(crc32c(0, a), b) == crc32c(0, a ++ b).
std::uint32_t crc32c(std::uint32_t crc, const void* data, std::size_t bytes);

// The variant in use ("portable", "avx2", "avx512", "neon"). TACO_ISA forces a lesser one.
const char* isa_name();
// A failure when TACO_ISA asks for what this host lacks (the best variant is in use then): for
// whoever starts a group to report.
Status isa_status();

}  // namespace taco::kernels
