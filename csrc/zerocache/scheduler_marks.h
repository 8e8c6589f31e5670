// Marks of the scheduler: a bit for each tier. Private to it.
#pragma once

#include <cstdint>

#include "zerocache/residency.h"

namespace taco::zerocache {
namespace {

constexpr std::uint8_t bit(Tier tier) { return static_cast<std::uint8_t>(1u << index_of(tier)); }
inline void unmark(std::uint8_t& marks, Tier tier) {
  marks &= static_cast<std::uint8_t>(~bit(tier));
}

// The position of what an operator waits for: before all others, and its pages give way to nothing.
constexpr Position kDemanded = -2;

}  // namespace
}  // namespace taco::zerocache
