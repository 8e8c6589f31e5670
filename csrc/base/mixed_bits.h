// splitmix64's finaliser: a permutation of 64 bits that puts neighbours far apart, the same on all
// ranks.
#pragma once

#include <cstdint>

namespace taco {

constexpr std::uint64_t mixed_bits(std::uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

}  // namespace taco
