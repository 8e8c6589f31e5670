// Keeps the calling thread at round-to-nearest while an object of these classes lives, and then
// restores its mode. Any thread may run a kernel, also one on which the user has set flush-to-zero;
// without this the ranks would disagree about tiny numbers.
//
//   FpMode     denormals are numbers like others: all kernels but
//   FlushMode  denormals count as 0, as operands and as results: steps of optimizers, whose state
//              fades through denormals, each of which costs a processor a hundred cycles
//
// Included by files that are compiled for different instruction sets: everything is internal.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace taco::kernels {
namespace {

template <bool kFlush>
class FpModeOf {
 public:
#if defined(__x86_64__)
  FpModeOf() : saved_(_mm_getcsr()) {
    // Writing MXCSR costs tens of cycles, so it happens only when the mode differs.
    if (__builtin_expect((saved_ & kModeBits) != kMode, kFlush)) _mm_setcsr(kMode);
  }
  ~FpModeOf() {
    if (__builtin_expect((saved_ & kModeBits) != kMode, kFlush)) _mm_setcsr(saved_);
  }

 private:
  static constexpr std::uint32_t kModeBits = 0xFFC0;  // FTZ, rounding, masks, DAZ
  // All exceptions masked, and nothing else but FTZ and DAZ.
  static constexpr std::uint32_t kMode = 0x1F80 | (kFlush ? 0x8040 : 0);
  std::uint32_t saved_;
#elif defined(__aarch64__)
  FpModeOf() {
    asm volatile("mrs %0, fpcr" : "=r"(saved_));
    if (__builtin_expect(saved_ != kMode, kFlush)) asm volatile("msr fpcr, %0" : : "r"(kMode));
  }
  ~FpModeOf() {
    if (__builtin_expect(saved_ != kMode, kFlush)) asm volatile("msr fpcr, %0" : : "r"(saved_));
  }

 private:
  static constexpr std::uint64_t kMode = kFlush ? std::uint64_t{1} << 24 : 0;
  std::uint64_t saved_;
#else
  FpModeOf() {}
  ~FpModeOf() {}

 private:
#endif
  FpModeOf(const FpModeOf&) = delete;
  FpModeOf& operator=(const FpModeOf&) = delete;
};

using FpMode = FpModeOf<false>;
using FlushMode = FpModeOf<true>;

}  // namespace
}  // namespace taco::kernels
