// Whether two lists of measurements may well be of the same thing, by their order alone: the
// rank-sum test of Wilcoxon, Mann and Whitney. No distribution is assumed, and single outliers say
// little. Any thread.
#pragma once

#include <span>

namespace taco::pg::lightcc {

// A bound on the probability that measurements of the same thing, in random order, are so far apart
// or farther, in either direction. It holds for however few there are.
double chance_of(std::span<const double> some, std::span<const double> others);

// Whether it is below one in a million: of the some 700 comparisons of a choice (automatic.h) in
// 1,000 steps that do not change, one says so in less than one training of 1,000.
bool is_no_chance(std::span<const double> some, std::span<const double> others);

}  // namespace taco::pg::lightcc
