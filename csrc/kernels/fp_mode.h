// Keeps the calling thread at round-to-nearest, with denormals, while an object of this class
// lives, and then restores its mode. Any thread may run a kernel, also one on which the user has
// set flush-to-zero; without this the ranks would disagree about tiny numbers.
//
// Included by files that are compiled for different instruction sets: everything is internal.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace taco::kernels {
namespace {

class FpMode {
 public:
#if defined(__x86_64__)
  FpMode() : saved_(_mm_getcsr()) {
    // Writing MXCSR costs tens of cycles, so it happens only when the mode differs.
    if (__builtin_expect((saved_ & kModeBits) != kDefaultMode, 0)) _mm_setcsr(kDefaultMode);
  }
  ~FpMode() {
    if (__builtin_expect((saved_ & kModeBits) != kDefaultMode, 0)) _mm_setcsr(saved_);
  }

 private:
  static constexpr std::uint32_t kModeBits = 0xFFC0;     // FTZ, rounding, masks, DAZ
  static constexpr std::uint32_t kDefaultMode = 0x1F80;  // all exceptions masked, nothing else
  std::uint32_t saved_;
#elif defined(__aarch64__)
  FpMode() {
    asm volatile("mrs %0, fpcr" : "=r"(saved_));
    if (__builtin_expect(saved_ != 0, 0)) asm volatile("msr fpcr, %0" : : "r"(std::uint64_t{0}));
  }
  ~FpMode() {
    if (__builtin_expect(saved_ != 0, 0)) asm volatile("msr fpcr, %0" : : "r"(saved_));
  }

 private:
  std::uint64_t saved_;
#else
  FpMode() {}
  ~FpMode() {}

 private:
#endif
  FpMode(const FpMode&) = delete;
  FpMode& operator=(const FpMode&) = delete;
};

}  // namespace
}  // namespace taco::kernels
