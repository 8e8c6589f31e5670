// The elements taken are those that a stable sort by magnitude puts first, whatever the instruction
// set and whatever the order of the input; and what is not sent stays, to the bit.
#include "kernels/select.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <string>

#include "kernels/samples.h"
#include "kernels/variant.h"

namespace taco::kernels {
namespace {

using testing::Random;
using Floats = std::vector<float>;

std::vector<std::uint32_t> bits_of(const Floats& values) {
  std::vector<std::uint32_t> bits(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) bits[i] = std::bit_cast<std::uint32_t>(values[i]);
  return bits;
}

// The expected result of a selection.
struct Taken {
  Floats residual, momentum, values, taken_momentum;
  std::vector<std::uint32_t> indices;
};

// By sorting, one float operation at a time (volatile: none is fused with another).
Taken expected_of(const Floats& residual, const Floats& momentum, const Floats& gradient,
                  float factor, std::size_t k) {
  Taken taken{residual, momentum, {}, {}, {}};
  for (std::size_t i = 0; i < residual.size(); ++i) {
    volatile float addend = gradient.empty() ? 0 : gradient[i];
    if (!momentum.empty()) {
      volatile const float kept = factor * momentum[i];
      addend = kept + addend;
      taken.momentum[i] = addend;
    }
    if (!gradient.empty()) taken.residual[i] = residual[i] + addend;
  }
  std::vector<std::uint32_t> order(residual.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    return std::fabs(taken.residual[a]) > std::fabs(taken.residual[b]);
  });
  order.resize(k);
  std::sort(order.begin(), order.end());
  taken.indices = order;
  for (const std::uint32_t index : order) {
    taken.values.push_back(taken.residual[index]);
    taken.residual[index] = 0;
    if (momentum.empty()) continue;
    taken.taken_momentum.push_back(taken.momentum[index]);
    taken.momentum[index] = 0;
  }
  return taken;
}

class SelectTest : public ::testing::TestWithParam<const Variant*> {
 protected:
  bool select(Floats& residual, Floats& momentum, const Floats& gradient, float factor,
              std::size_t k, Floats& values, std::vector<std::uint32_t>& indices,
              Floats* taken_momentum = nullptr) {
    values.assign(k + 1, kGuard);
    indices.assign(k + 1, kIndexGuard);
    if (taken_momentum != nullptr) taken_momentum->assign(momentum.empty() ? 0 : k, kGuard);
    const bool finite = select_with(
        *GetParam(), residual.data(), momentum.empty() ? nullptr : momentum.data(),
        gradient.empty() ? nullptr : gradient.data(), factor, residual.size(), k, values.data(),
        indices.data(), scratch_, taken_momentum != nullptr ? taken_momentum->data() : nullptr);
    EXPECT_EQ(values.back(), kGuard) << "values written beyond the k-th";
    EXPECT_EQ(indices.back(), kIndexGuard) << "indices written beyond the k-th";
    values.pop_back();
    indices.pop_back();
    return finite;
  }

  void check(const Floats& residual, const Floats& momentum, const Floats& gradient, float factor,
             std::size_t k) {
    SCOPED_TRACE(std::to_string(k) + " of " + std::to_string(residual.size()));
    const Taken expected = expected_of(residual, momentum, gradient, factor, k);
    Taken taken{residual, momentum, {}, {}, {}};
    ASSERT_TRUE(select(taken.residual, taken.momentum, gradient, factor, k, taken.values,
                       taken.indices, &taken.taken_momentum));
    ASSERT_EQ(taken.indices, expected.indices);
    ASSERT_EQ(bits_of(taken.values), bits_of(expected.values));
    ASSERT_EQ(bits_of(taken.residual), bits_of(expected.residual));
    ASSERT_EQ(bits_of(taken.momentum), bits_of(expected.momentum));
    ASSERT_EQ(bits_of(taken.taken_momentum), bits_of(expected.taken_momentum));
  }
  void check(const Floats& residual, const Floats& gradient, std::size_t k) {
    check(residual, {}, gradient, 0, k);
  }

  static constexpr float kGuard = 12345.5f;
  static constexpr std::uint32_t kIndexGuard = 0xDEAD'BEEF;
  SelectScratch scratch_;
};

Floats made(std::size_t n, const std::function<float(std::size_t)>& value) {
  Floats all(n);
  for (std::size_t i = 0; i < n; ++i) all[i] = value(i);
  return all;
}

Floats normal(std::size_t n, Random& random, float spread = 1) {
  std::normal_distribution<float> distribution(0, spread);
  return made(n, [&](std::size_t) { return distribution(random); });
}

std::vector<std::size_t> counts_of(std::size_t n) {
  std::vector<std::size_t> counts;
  for (const std::size_t k :
       {std::size_t{1}, std::size_t{2}, n / 1000, n / 100, n / 3, n / 2, n - 1, n}) {
    if (k >= 1 && k <= n) counts.push_back(k);
  }
  std::sort(counts.begin(), counts.end());
  counts.erase(std::unique(counts.begin(), counts.end()), counts.end());
  return counts;
}

TEST_P(SelectTest, TakesTheLargestOfRandomSumsAtEveryLength) {
  Random random(1);
  for (const std::size_t n : testing::lengths()) {
    if (n == 0) continue;
    const Floats residual = normal(n, random), gradient = normal(n, random, 0.1f);
    for (const std::size_t k : counts_of(n)) check(residual, gradient, k);
  }
}

TEST_P(SelectTest, TakesTheLargestOfTheLongestBlock) {
  Random random(2);
  const Floats residual = normal(kMaxSelectable, random);
  const Floats gradient = normal(kMaxSelectable, random);
  check(residual, gradient, 1);
  check(residual, gradient, kMaxSelectable / 100);
  check(residual, gradient, kMaxSelectable);
}

// Bits of every kind, denormals and both zeros among them: every exponent is as likely.
TEST_P(SelectTest, TakesTheLargestOfAnyFiniteBits) {
  Random random(3);
  for (const std::size_t n : {std::size_t{77}, std::size_t{5000}, std::size_t{70'000}}) {
    const auto finite = [&](std::size_t) {
      const auto draw = static_cast<std::uint32_t>(random());
      if (draw % 8 == 0) return std::bit_cast<float>(draw & 0x8000'0007u);  // zeros, tiny ones
      // Exponents up to 2^126, so that no sum overflows.
      const auto exponent = static_cast<std::uint32_t>(random() % 254);
      return std::bit_cast<float>((draw & 0x807F'FFFFu) | exponent << 23);
    };
    const Floats residual = made(n, finite), gradient = made(n, finite);
    for (const std::size_t k : counts_of(n)) check(residual, gradient, k);
  }
}

TEST_P(SelectTest, NoOrderOfTheInputMattersToTheResult) {
  constexpr std::size_t kN = 60'000;
  Random random(4);
  const auto at = [](std::size_t i) { return static_cast<float>(i); };
  const Floats shapes[] = {
      made(kN, at),                                         // ascending
      made(kN, [&](std::size_t i) { return at(kN - i); }),  // descending
      made(kN, [&](std::size_t i) { return -at(i); }),      // ascending in magnitude alone
      made(kN, [](std::size_t) { return 1.5f; }),           // all equal
      made(kN, [](std::size_t) { return 0.0f; }),           // all zero
      made(kN, [](std::size_t i) { return i % 2 ? -0.0f : 0.0f; }),
      made(kN, [](std::size_t i) { return i % 3 ? 1.0f : -2.0f; }),  // two values
      made(kN, [](std::size_t i) { return i < kN / 2 ? 1.0f : 2.0f; }),
      made(kN, [](std::size_t i) { return i < kN / 2 ? 2.0f : -1.0f; }),
      made(kN, [](std::size_t i) { return i % 20'000 == 19'999 ? 1e30f : 1e-30f; }),  // a few huge
      made(kN, [](std::size_t i) { return i % 64 == 5 ? 1.0f : 0.0f; }),
      made(kN, [&](std::size_t i) { return at(std::min(i, kN - i)); }),         // up and down
      made(kN, [&](std::size_t i) { return at(i % 100) * (i % 7 ? 1 : -1); }),  // few values
      made(kN, [](std::size_t i) { return std::bit_cast<float>(std::uint32_t(i) | 1u << 31); }),
      made(kN, [](std::size_t i) { return std::bit_cast<float>(std::uint32_t(i % 3)); }),
  };
  const Floats zero(kN, 0.0f);
  for (std::size_t shape = 0; shape < std::size(shapes); ++shape) {
    SCOPED_TRACE("shape " + std::to_string(shape));
    for (const std::size_t k : counts_of(kN)) {
      check(shapes[shape], zero, k);
      check(zero, shapes[shape], k);
    }
  }
}

// Rising thresholds meet ties of the last threshold in every way: few values, in random order.
TEST_P(SelectTest, TiesGoToTheLowerIndexHoweverTheyAreSpread) {
  Random random(5);
  for (int round = 0; round < 60; ++round) {
    const std::size_t n = 1 + random() % 40'000;
    const std::uint64_t values = 1 + random() % 6;
    const bool rising = random() % 2 == 0;
    const Floats residual = made(n, [&](std::size_t i) {
      const std::uint64_t least = rising ? i * values / n : 0;
      return static_cast<float>(least + random() % values) * (random() % 2 == 0 ? 1 : -1);
    });
    check(residual, Floats(n, 0.0f), 1 + random() % n);
    check(residual, Floats(n, 0.0f), 1 + random() % std::min<std::size_t>(n, 50));
  }
}

TEST_P(SelectTest, WithoutAGradientTheResidualIsWhatItWas) {
  Random random(6);
  Floats residual = normal(9000, random);
  residual[17] = -0.0f;
  residual[18] = std::numeric_limits<float>::denorm_min();
  for (const std::size_t k : counts_of(residual.size())) check(residual, {}, k);
}

TEST_P(SelectTest, MomentumIsCorrectedAndMaskedWhereTaken) {
  Random random(7);
  for (const std::size_t n : testing::lengths()) {
    if (n == 0) continue;
    const Floats residual = normal(n, random), momentum = normal(n, random, 1e-3f);
    const Floats gradient = normal(n, random, 1e-3f);
    for (const std::size_t k : counts_of(n)) check(residual, momentum, gradient, 0.9f, k);
  }
}

// 1 + 2^-12 squared is not a float: fused into the addition, what rounding takes would be seen.
TEST_P(SelectTest, MomentumIsRoundedBeforeTheGradientIsAdded) {
  const float x = 1 + std::ldexp(1.0f, -12);
  const std::size_t n = 40;
  check(Floats(n, 0.0f), Floats(n, x), Floats(n, -1 - std::ldexp(1.0f, -11)), x, 3);
}

TEST_P(SelectTest, ASumThatIsNotFiniteLeavesAllAsItWas) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const float bad[] = {kInfinity, -kInfinity, std::nanf(""), -std::nanf("1"),
                       std::bit_cast<float>(0x7F80'0001u)};
  Random random(8);
  for (const std::size_t n : {1, 2, 15, 16, 17, 33, 4095, 4096, 4097, 30'000}) {
    const Floats residual = normal(n, random), momentum = normal(n, random);
    const Floats gradient = normal(n, random);
    std::vector<std::size_t> places = {0, n / 2, n - 1,
                                       n - n % 16 - (n % 16 == 0 && n > 1 ? 1 : 0)};
    for (int i = 0; i < 4; ++i) places.push_back(random() % n);
    for (const std::size_t place : places) {
      if (place >= n) continue;
      for (const float value : bad) {
        for (const std::size_t k : {std::size_t{1}, (n + 99) / 100, n}) {
          SCOPED_TRACE(std::to_string(value) + " at " + std::to_string(place) + " of " +
                       std::to_string(n) + ", k " + std::to_string(k));
          for (const bool in_residual : {false, true}) {
            for (const bool with_momentum : {false, true}) {
              Floats r = residual, g = gradient, m = with_momentum ? momentum : Floats();
              (in_residual ? r : g)[place] = value;
              const Floats before = r, momentum_before = m;
              Floats values;
              std::vector<std::uint32_t> indices;
              ASSERT_FALSE(select(r, m, g, 0.9f, k, values, indices));
              ASSERT_EQ(bits_of(r), bits_of(before));
              ASSERT_EQ(bits_of(m), bits_of(momentum_before));
            }
          }
        }
      }
    }
  }
}

TEST_P(SelectTest, ASumThatOverflowsIsNotFinite) {
  constexpr float kLargest = std::numeric_limits<float>::max();
  for (const std::size_t place : {0, 7, 4999}) {
    Floats residual(5000, 1.0f), gradient(5000, 1.0f), none;
    residual[place] = gradient[place] = -kLargest;
    const Floats before = residual;
    Floats values;
    std::vector<std::uint32_t> indices;
    EXPECT_FALSE(select(residual, none, gradient, 0, 50, values, indices));
    EXPECT_EQ(bits_of(residual), bits_of(before));
    gradient[place] = 0;  // the largest number itself is one
    check(residual, gradient, 50);
  }
}

// The same over and over: what is left adds up until it is sent.
TEST_P(SelectTest, NothingIsLostFromRoundToRound) {
  Random random(9);
  constexpr std::size_t kN = 3000, kK = 30;
  Floats residual(kN, 0.0f), none, values;
  std::vector<double> given(kN, 0), sent(kN, 0);
  std::vector<std::uint32_t> indices;
  for (int round = 0; round < 300; ++round) {
    // Whole numbers, so that sums are exact.
    const Floats gradient = made(
        kN, [&](std::size_t) { return static_cast<float>(static_cast<int>(random() % 9) - 4); });
    for (std::size_t i = 0; i < kN; ++i) given[i] += gradient[i];
    ASSERT_TRUE(select(residual, none, gradient, 0, kK, values, indices));
    for (std::size_t j = 0; j < kK; ++j) sent[indices[j]] += values[j];
  }
  for (std::size_t i = 0; i < kN; ++i) ASSERT_EQ(given[i], sent[i] + residual[i]) << i;
}

INSTANTIATE_TEST_SUITE_P(Host, SelectTest,
                         ::testing::ValuesIn(host_variants().begin(), host_variants().end()),
                         [](const auto& instance) { return std::string(instance.param->name); });

TEST(Select, TheEntriesUseTheVariantOfTheHost) {
  Floats residual = {1, -5, 2, 4}, momentum = {0, 0, 0, 2}, values(2);
  const Floats gradient = {1, 1, 1, -1};
  std::vector<std::uint32_t> indices(2);
  SelectScratch scratch;
  ASSERT_TRUE(select_largest(residual.data(), gradient.data(), 4, 2, values.data(), indices.data(),
                             scratch));
  EXPECT_EQ(values, (Floats{-4, 3}));
  EXPECT_EQ(indices, (std::vector<std::uint32_t>{1, 2}));
  EXPECT_EQ(residual, (Floats{2, 0, 0, 3}));
  ASSERT_TRUE(select_largest_momentum(residual.data(), momentum.data(), gradient.data(), 0.5f, 4, 2,
                                      values.data(), indices.data(), scratch));
  EXPECT_EQ(values, (Floats{3, 3}));
  EXPECT_EQ(indices, (std::vector<std::uint32_t>{0, 3}));
  EXPECT_EQ(momentum, (Floats{0, 1, 1, 0}));
  EXPECT_EQ(residual, (Floats{0, 1, 1, 0}));
}

TEST(ScatterAdd, AddsWhereTheIndicesSay) {
  Floats acc = {1, 2, 3, std::nanf("7")};
  const Floats values = {10, -3, 1};
  const std::vector<std::uint32_t> indices = {0, 2, 3};
  scatter_add(acc.data(), values.data(), indices.data(), 3);
  EXPECT_EQ(acc[0], 11);
  EXPECT_EQ(acc[1], 2);
  EXPECT_EQ(acc[2], 0);
  EXPECT_EQ(std::bit_cast<std::uint32_t>(acc[3]), 0x7FC0'0000u);
  scatter_add(acc.data(), nullptr, nullptr, 0);
  EXPECT_EQ(acc[0], 11);
}

}  // namespace
}  // namespace taco::kernels
