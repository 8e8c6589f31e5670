// CRC32C by the instruction of SSE4.2. It takes three cycles but one may start every cycle, so
// three thirds of a block go through it side by side; carry-less products then join them.
#include <immintrin.h>

#include "kernels/crc32c_folding.h"

namespace taco::kernels {
namespace {

constexpr std::size_t kMaxWords = 64;  // of 8 bytes, in each third of a block

// kShift[w]: multiplies a checksum by x^(64 w), as if 8 w zero bytes followed. A carry-less product
// of two 32-bit values, taken through one more checksum step, gains x^33.
constexpr auto kShift = [] {
  std::array<std::uint32_t, 2 * kMaxWords + 1> shift{};
  std::uint32_t power = crc::power_of_x(64 - 33);
  for (std::size_t words = 1; words <= 2 * kMaxWords; ++words) {
    shift[words] = power;
    for (int i = 0; i < 64; ++i) power = crc::times_x(power);
  }
  return shift;
}();

std::uint64_t word_at(const unsigned char* from) {
  std::uint64_t word;
  __builtin_memcpy(&word, from, sizeof(word));
  return word;
}

std::uint64_t product(std::uint64_t checksum, std::uint32_t factor) {
  const __m128i a = _mm_cvtsi64_si128(static_cast<long long>(checksum));
  const __m128i b = _mm_cvtsi32_si128(static_cast<int>(factor));
  return static_cast<std::uint64_t>(_mm_cvtsi128_si64(_mm_clmulepi64_si128(a, b, 0)));
}

// Three runs of `words` words that follow each other.
std::uint64_t three_runs(std::uint64_t crc, const unsigned char* at, std::size_t words) {
  const unsigned char* middle = at + 8 * words;
  const unsigned char* last = middle + 8 * words;
  std::uint64_t crc_middle = 0;
  std::uint64_t crc_last = 0;
  for (std::size_t i = 0; i < words; ++i) {
    crc = _mm_crc32_u64(crc, word_at(at + 8 * i));
    crc_middle = _mm_crc32_u64(crc_middle, word_at(middle + 8 * i));
    crc_last = _mm_crc32_u64(crc_last, word_at(last + 8 * i));
  }
  const std::uint64_t moved = product(crc, kShift[2 * words]) ^ product(crc_middle, kShift[words]);
  return _mm_crc32_u64(0, moved) ^ crc_last;
}

std::uint32_t crc32c_sse42(std::uint32_t initial, const void* data, std::size_t bytes) {
  const auto* at = static_cast<const unsigned char*>(data);
  std::uint64_t crc = ~initial;
  constexpr std::size_t kWorthwhile = 96;  // below this the products cost more than they save
  while (bytes >= kWorthwhile) {
    const std::size_t third = bytes / 24;
    const std::size_t words = third < kMaxWords ? third : kMaxWords;
    crc::prefetch_ahead(at, 24 * words);
    crc = three_runs(crc, at, words);
    at += 24 * words;
    bytes -= 24 * words;
  }
  for (; bytes >= 8; bytes -= 8, at += 8) crc = _mm_crc32_u64(crc, word_at(at));
  auto narrow = static_cast<std::uint32_t>(crc);
  for (; bytes > 0; --bytes, ++at) narrow = _mm_crc32_u8(narrow, *at);
  return ~narrow;
}

}  // namespace

constinit const Checksum kSse42Checksum{"sse4.2", 1, crc32c_sse42};

}  // namespace taco::kernels
