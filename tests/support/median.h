// The median of a figure over several seeds. One seed's figure changes with every packet that is
// added anywhere, so no test judges by it. Test support.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace taco {

// So many that one or two of them decide nothing; and for networks that carry a gigabyte each,
// where one decides nothing.
inline constexpr std::uint64_t kSeedsOfAMedian = 5, kFewSeeds = 3;

inline double median(std::vector<double> figures) {
  const auto middle = figures.begin() + static_cast<std::ptrdiff_t>(figures.size() / 2);
  std::nth_element(figures.begin(), middle, figures.end());
  return *middle;
}

template <class Figure>
double median_over_seeds(const Figure& of_seed) {
  std::vector<double> figures;
  for (std::uint64_t seed = 1; seed <= kSeedsOfAMedian; ++seed) figures.push_back(of_seed(seed));
  return median(figures);
}

}  // namespace taco
