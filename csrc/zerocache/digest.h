// A number that stands for what ranks have to have alike: FNV-1a.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

namespace taco::zerocache {

class Digest {
 public:
  void add(std::span<const std::byte> bytes) {
    for (const std::byte each : bytes) {
      value_ = (value_ ^ static_cast<std::uint64_t>(each)) * 0x100000001b3;
    }
  }
  template <class Value>
  void add_value(const Value& value) {
    static_assert(std::is_arithmetic_v<Value>);
    add(std::as_bytes(std::span(&value, 1)));
  }
  std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_ = 0xcbf29ce484222325;
};

}  // namespace taco::zerocache
