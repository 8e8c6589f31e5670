// The checksum of IP, UDP and ICMPv6: the ones' complement sum of 16-bit words (RFC 1071).
//
// A pure value; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace taco::harp {

class InternetChecksum {
 public:
  // Behind what has been added already, of which only the last piece was of odd length, or none: a
  // piece may begin in the middle of a word.
  void add(std::span<const std::byte> bytes);
  // A number that a header carries in network order. Only while no piece of odd length was added.
  void add_number(std::uint16_t number);

  // As packets carry it: the bytes of the result lie in memory as they go out. `sum` is what a
  // header holds whose checksum the hardware is to finish; `complement`, the finished one. The sum
  // of words that hold their own complement is 0xffff.
  std::uint16_t sum() const { return sum_; }
  std::uint16_t complement() const { return static_cast<std::uint16_t>(~sum_); }

 private:
  void add_word(std::uint16_t word);

  std::uint16_t sum_ = 0;
  bool is_odd_ = false;  // the number of bytes so far
};

}  // namespace taco::harp
