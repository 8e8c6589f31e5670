// Copies past the caches. An ordinary store first reads the line it is going to overwrite; for a
// destination larger than the caches that is a third of all traffic, for nothing.
#include <cstdint>
#include <cstring>

#include "kernels/kernels.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace taco::kernels {

#if defined(__SSE2__)

void copy_cold(void* to, const void* from, std::size_t bytes) {
  constexpr std::size_t kLine = 64;
  constexpr std::size_t kWorthIt = 4096;
  if (bytes < kWorthIt) {
    std::memcpy(to, from, bytes);
    return;
  }
  auto* out = static_cast<std::byte*>(to);
  const auto* in = static_cast<const std::byte*>(from);
  const std::size_t head = -reinterpret_cast<std::uintptr_t>(out) % kLine;
  std::memcpy(out, in, head);
  std::size_t at = head;
  for (; at + kLine <= bytes; at += kLine) {
    const auto* source = reinterpret_cast<const __m128i*>(in + at);
    auto* line = reinterpret_cast<__m128i*>(out + at);
    const __m128i a = _mm_loadu_si128(source), b = _mm_loadu_si128(source + 1);
    const __m128i c = _mm_loadu_si128(source + 2), d = _mm_loadu_si128(source + 3);
    _mm_stream_si128(line, a);
    _mm_stream_si128(line + 1, b);
    _mm_stream_si128(line + 2, c);
    _mm_stream_si128(line + 3, d);
  }
  _mm_sfence();  // before anybody is told that the bytes are there
  std::memcpy(out + at, in + at, bytes - at);
}

#else

void copy_cold(void* to, const void* from, std::size_t bytes) { std::memcpy(to, from, bytes); }

#endif

}  // namespace taco::kernels
