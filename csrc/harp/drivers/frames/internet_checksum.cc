#include "harp/drivers/frames/internet_checksum.h"

#include <arpa/inet.h>

#include <array>
#include <cstring>

namespace taco::harp {

namespace {

constexpr std::size_t kLanes = 4;  // sums that do not wait for each other
constexpr std::size_t kStep = kLanes * sizeof(std::uint64_t);

std::uint64_t add_with_carry(std::uint64_t a, std::uint64_t b) {
  const std::uint64_t sum = a + b;
  return sum + (sum < b ? 1 : 0);
}

std::uint64_t word_at(const std::byte* bytes) {
  std::uint64_t word;
  std::memcpy(&word, bytes, sizeof word);
  return word;
}

std::uint16_t fold(std::uint64_t sum) {
  sum = (sum & 0xffff'ffff) + (sum >> 32);
  sum = (sum & 0xffff'ffff) + (sum >> 32);
  sum = (sum & 0xffff) + (sum >> 16);
  sum = (sum & 0xffff) + (sum >> 16);
  return static_cast<std::uint16_t>(sum);
}

}  // namespace

// The sum of 64-bit words, folded, is that of 16-bit words, whatever their byte order.
void InternetChecksum::add(std::span<const std::byte> bytes) {
  std::array<std::uint64_t, kLanes> lanes{};
  const std::byte* at = bytes.data();
  std::size_t left = bytes.size();
  for (; left >= kStep; at += kStep, left -= kStep) {
    for (std::size_t i = 0; i < kLanes; ++i) {
      lanes[i] = add_with_carry(lanes[i], word_at(at + i * sizeof(std::uint64_t)));
    }
  }
  std::uint64_t sum = 0;
  for (const std::uint64_t lane : lanes) sum = add_with_carry(sum, lane);
  for (; left >= sizeof sum; at += sizeof sum, left -= sizeof sum) {
    sum = add_with_carry(sum, word_at(at));
  }
  std::array<std::byte, sizeof sum> rest{};
  if (left > 0) std::memcpy(rest.data(), at, left);
  const std::uint16_t folded = fold(add_with_carry(sum, word_at(rest.data())));
  add_word(is_odd_ ? __builtin_bswap16(folded) : folded);
  is_odd_ ^= bytes.size() % 2 != 0;
}

void InternetChecksum::add_number(std::uint16_t number) { add_word(htons(number)); }

void InternetChecksum::add_word(std::uint16_t word) { sum_ = fold(std::uint64_t{sum_} + word); }

}  // namespace taco::harp
