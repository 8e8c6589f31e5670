// Vectors in memory of any alignment, and the part of one that an array ends with.
//
// Included by files that are compiled for different instruction sets: everything is internal.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/operations.h"

namespace taco::kernels {
namespace {

using Byte = unsigned char;

template <class V>
inline V load_vector(const void* from) {
  V value;
  __builtin_memcpy(&value, from, sizeof(V));
  return value;
}
template <class V>
inline void store_vector(void* to, V value) {
  __builtin_memcpy(to, &value, sizeof(V));
}
template <class V>
inline V load_part(const void* from, std::size_t bytes) {
  V value{};
  __builtin_memcpy(&value, from, bytes);
  return value;
}
template <class V>
inline void store_part(void* to, V value, std::size_t bytes) {
  __builtin_memcpy(to, &value, bytes);
}

template <int kBytes>
using FloatsOf = typename Vector<float, kBytes>::Values;
template <int kBytes>
using HalvesOf = typename Vector<std::uint16_t, kBytes / 2>::Values;
template <int kBytes>
using WordsOf = typename Vector<std::int32_t, kBytes>::Values;

inline constexpr std::size_t kCacheLine = 64;
// Where an operation takes many instructions, too few elements fit the processor's window to keep
// the memory busy: reading ahead takes bfloat16 from 0.7 to 0.95 of the memory's speed, and costs
// a packet 2 ns. Nearer is too late for float16, farther for nobody's good: the figures are in
// docs/benchmarks-kernels.md. A prefetch beyond the end touches nothing.
inline constexpr std::size_t kAhead = 1536;

// Where little is written for what is read, the second-level cache is early enough, and farther
// ahead is better: selection gains 3% on the former, conversions to 16 bits up to 7% while others
// use the memory too.
inline constexpr std::size_t kFarAhead = 4096;

// Asks for the lines of the kBytes that lie kAhead of `from`.
template <std::size_t kBytes>
inline void prefetch(const void* from) {
  for (std::size_t line = 0; line < kBytes; line += kCacheLine) {
    __builtin_prefetch(static_cast<const Byte*>(from) + line + kAhead);
  }
}
template <std::size_t kBytes>
inline void prefetch_far(const void* from) {
  for (std::size_t line = 0; line < kBytes; line += kCacheLine) {
    __builtin_prefetch(static_cast<const Byte*>(from) + line + kFarAhead, 0, 2);
  }
}

// Asks for lines that will be written, as owned. What is only written gains: conversions to another
// type 8%. What is read first does too, kAhead of it: steps of optimizers gain 4%.
inline constexpr std::size_t kAheadOfStores = 1024;
template <std::size_t kBytes, std::size_t kDistance = kAheadOfStores>
inline void prefetch_to_write(void* to) {
  for (std::size_t line = 0; line < kBytes; line += kCacheLine) {
    Byte* const at = static_cast<Byte*>(to) + line + kDistance;
#if defined(__x86_64__)
    asm volatile("prefetchw %0" : : "m"(*at));  // compilers take it for an extension; none lacks it
#else
    __builtin_prefetch(at, 1);
#endif
  }
}

// work(i, load, store) for each pack of elements from i on: load(pointer, Type{}) and
// store(pointer, value) are of a whole pack, or of a part where the array ends within. ahead(i)
// runs once for each two lines of floats.
template <class Floats, class Ahead, class Work>
inline void each_pack(std::size_t count, Ahead ahead, Work work) {
  constexpr std::size_t kLanes = sizeof(Floats) / sizeof(float);
  constexpr std::size_t kStep = 2 * kCacheLine / sizeof(float);
  const auto load = [](const auto* from, auto type) { return load_vector<decltype(type)>(from); };
  const auto store = [](auto* to, auto value) { store_vector(to, value); };
  std::size_t i = 0;
  for (; i + kStep <= count; i += kStep) {
    ahead(i);
    for (std::size_t j = i; j < i + kStep; j += kLanes) work(j, load, store);
  }
  for (; i + kLanes <= count; i += kLanes) work(i, load, store);
  if (const std::size_t rest = count - i; rest > 0) {
    work(
        i,
        [rest](const auto* from, auto type) {
          return load_part<decltype(type)>(from, rest * sizeof(*from));
        },
        [rest](auto* to, auto value) { store_part(to, value, rest * sizeof(*to)); });
  }
}

}  // namespace
}  // namespace taco::kernels
