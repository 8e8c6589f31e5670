// Indices as a selection gives them. Test support.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <numeric>
#include <random>
#include <vector>

namespace taco::kernels::cuda::testing {

// k numbers below n, drawn.
inline std::vector<std::uint32_t> ascending(std::mt19937_64& random, std::uint32_t n,
                                            std::uint32_t k) {
  std::vector<std::uint32_t> all(n), chosen;
  std::iota(all.begin(), all.end(), 0u);
  std::sample(all.begin(), all.end(), std::back_inserter(chosen), k, random);
  return chosen;
}

}  // namespace taco::kernels::cuda::testing
