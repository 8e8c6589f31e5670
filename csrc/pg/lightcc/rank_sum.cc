#include "pg/lightcc/rank_sum.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace taco::pg::lightcc {
namespace {

// The logarithm of exp(x) - 1, for any x > 0.
double log_expm1(double x) { return x + std::log1p(-std::exp(-x)); }

// The logarithm of the mean of exp(t * pairs), of the pairs of n and m in which the first is
// larger, where all orders are alike: by Gauss's binomial coefficients.
double cumulant(std::size_t n, std::size_t m, double t) {
  double sum = 0;
  for (std::size_t i = 1; i <= n; ++i) {
    const auto small = static_cast<double>(i), large = static_cast<double>(m + i);
    sum += log_expm1(t * large) - std::log(large) - log_expm1(t * small) + std::log(small);
  }
  return sum;
}

// Pairs in which the first is larger, and half of those that are equal.
double larger_pairs(std::span<const double> some, std::span<const double> others) {
  double larger = 0;
  for (const double a : some) {
    for (const double b : others) larger += a > b ? 1 : a == b ? 0.5 : 0;
  }
  return larger;
}

// Chernoff's bound, which is convex in t: on the probability of so many pairs or more.
double tail(std::size_t n, std::size_t m, double pairs) {
  if (pairs <= static_cast<double>(n * m) / 2) return 1;
  const auto at = [&](double log_t) {
    const double t = std::exp(log_t);
    return cumulant(n, m, t) - t * pairs;
  };
  double low = -12, high = 3;
  for (int i = 0; i < 40; ++i) {
    const double left = low + (high - low) / 3, right = high - (high - low) / 3;
    if (at(left) < at(right)) {
      high = right;
    } else {
      low = left;
    }
  }
  return std::min(1.0, std::exp(at((low + high) / 2)));
}

}  // namespace

double chance_of(std::span<const double> some, std::span<const double> others) {
  const double larger = larger_pairs(some, others);
  const double most = std::max(larger, static_cast<double>(some.size() * others.size()) - larger);
  return std::min(1.0, 2 * tail(some.size(), others.size(), most));
}

bool is_no_chance(std::span<const double> some, std::span<const double> others) {
  // In most cases a look will do: within so many standard deviations it is chance.
  constexpr double kLook = 3.5;
  const auto n = static_cast<double>(some.size()), m = static_cast<double>(others.size());
  const double off = std::abs(larger_pairs(some, others) - n * m / 2);
  if (off < kLook * std::sqrt(n * m * (n + m + 1) / 12)) return false;
  return chance_of(some, others) < 1e-6;
}

}  // namespace taco::pg::lightcc
