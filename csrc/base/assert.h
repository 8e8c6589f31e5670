// TACO_ASSERT(condition) or TACO_ASSERT(condition, "printf-style text", ...): what must hold
// whatever the caller, the peer or the kernel does. When it does not, the process prints the
// condition and its place, and aborts. What others can bring about is no assertion but a Status.
//
// Checked in builds of the core alone (tests, sanitizers, fuzzing: CMake's TACO_ASSERTIONS). In
// what is installed a condition is compiled but never evaluated, so it may cost whatever it likes;
// it must have no effect.
#pragma once

#ifndef TACO_ASSERTIONS
#define TACO_ASSERTIONS 0
#endif

namespace taco {

inline constexpr bool kAssertions = TACO_ASSERTIONS != 0;

[[noreturn, gnu::cold]] void assertion_failed(const char* condition, const char* file, int line);
[[noreturn, gnu::cold, gnu::format(printf, 4, 5)]] void assertion_failed(const char* condition,
                                                                         const char* file, int line,
                                                                         const char* format, ...);

#define TACO_ASSERT(condition, ...)    \
  (!::taco::kAssertions || (condition) \
       ? static_cast<void>(0)          \
       : ::taco::assertion_failed(#condition, __FILE__, __LINE__ __VA_OPT__(, ) __VA_ARGS__))

}  // namespace taco
