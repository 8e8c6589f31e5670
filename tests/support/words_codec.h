// A codec for tests whose every element is coded by itself, so that blocks can be added up as they
// arrive: words of 32 bits with some bits turned round.
#pragma once

#include <algorithm>
#include <bit>
#include <cstring>

#include "pg/codec.h"

namespace taco::pg::testing {

class WordsCodec final : public Codec {
 public:
  explicit WordsCodec(std::uint64_t longest_block = std::uint64_t{4} << 20)
      : longest_block_(longest_block) {}
  const char* name() const override { return "turned words"; }
  std::uint64_t most(std::uint64_t bytes) const override { return bytes; }
  double bytes_per_second() const override { return 2e9; }
  std::uint64_t longest_block() const override { return longest_block_; }
  Arrival arrival() const override {
    return {kWord, [](void* sum, const void*, const void* coded, std::size_t count) {
              for (std::size_t i = 0; i < count; ++i) {
                float left = 0;
                std::uint32_t word = 0;
                std::memcpy(&left, static_cast<std::byte*>(sum) + i * kWord, kWord);
                std::memcpy(&word, static_cast<const std::byte*>(coded) + i * kWord, kWord);
                left += std::bit_cast<float>(word ^ kTurned);
                std::memcpy(static_cast<std::byte*>(sum) + i * kWord, &left, kWord);
              }
            }};
  }

  Result<std::size_t> encode(Coding& coding, std::size_t budget) const override {
    const std::size_t bytes = turn(coding, coding.source_bytes, budget, false);
    coding.done = coding.read == coding.source_bytes;
    return bytes;
  }
  Result<std::size_t> decode(Coding& coding, std::size_t budget) const override {
    if (coding.source_bytes != coding.destination_bytes)
      return Status(Code::kMismatch, "turned words of another length");
    const std::size_t bytes = turn(coding, coding.source_bytes, budget, true);
    coding.done = coding.read == coding.source_bytes;
    return bytes;
  }

 private:
  static constexpr std::size_t kWord = sizeof(std::uint32_t);
  static constexpr std::uint32_t kTurned = 0x5a5a5a5a;

  static std::size_t turn(Coding& coding, std::size_t total, std::size_t budget, bool reduces) {
    const std::size_t first = coding.read;
    while (coding.read < total && coding.read - first < budget) {
      std::uint32_t word = 0;
      std::memcpy(&word, coding.source + coding.read, kWord);
      word ^= kTurned;
      std::byte* to = coding.destination + coding.written;
      if (reduces && coding.operand != nullptr) {
        coding.reduce(to, coding.operand + coding.written, &word, 1);
      } else {
        std::memcpy(to, &word, kWord);
      }
      coding.read += kWord;
      coding.written += kWord;
    }
    return coding.read - first;
  }

  const std::uint64_t longest_block_;
};

}  // namespace taco::pg::testing
