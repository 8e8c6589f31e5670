// Numbers that stand for more than they can hold, the same on all ranks: two that differ came from
// different things. Nobody is kept from finding two that do not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>

namespace taco {

// FNV-1a's, from which folding begins too.
inline constexpr std::uint64_t kEmptyDigest = 0xcbf29ce484222325;

// FNV-1a of bytes.
class Digest {
 public:
  Digest& add(std::span<const std::byte> bytes) {
    for (const std::byte each : bytes) {
      value_ = (value_ ^ static_cast<std::uint64_t>(each)) * 0x100000001b3;
    }
    return *this;
  }
  template <class Value>
  Digest& add_value(const Value& value) {
    static_assert(std::is_arithmetic_v<Value>);
    return add(std::as_bytes(std::span(&value, 1)));
  }
  // With its length, so that two texts are not one.
  Digest& add_text(std::string_view text) {
    return add(std::as_bytes(std::span(text))).add_value(std::uint64_t{text.size()});
  }
  std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_ = kEmptyDigest;
};

// `digest` with one more word in it, for a multiplication where FNV-1a takes eight.
constexpr std::uint64_t folded(std::uint64_t digest, std::uint64_t word) {
  digest = (digest ^ word) * 0x9e3779b97f4a7c15;
  return digest ^ (digest >> 29);
}

}  // namespace taco
