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

// Asks for the lines that [from, from + bytes) would be after kAhead more bytes.
template <std::size_t kBytes>
inline void prefetch_ahead(const void* from) {
  for (std::size_t line = 0; line < kBytes; line += kCacheLine) {
    __builtin_prefetch(static_cast<const Byte*>(from) + line + kAhead);
  }
}

}  // namespace
}  // namespace taco::kernels
