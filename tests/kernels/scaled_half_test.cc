// Scaled float16 against exact arithmetic in double, on every instruction set.
#include "kernels/scaled_half.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <string>

#include "kernels/half.h"
#include "kernels/samples.h"
#include "kernels/variant.h"

namespace taco::kernels {
namespace {

using testing::Bytes;
using testing::Random;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr std::uint16_t kHalfNan = 0x7E00;
constexpr std::uint32_t kFloatNan = 0x7FC0'0000;

// Float16 of a double, rounded once to nearest even, from the definition of the format.
std::uint16_t half_of(double value) {
  if (std::isnan(value)) return kHalfNan;
  const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(value);
  if (magnitude >= 65520) return static_cast<std::uint16_t>(sign | 0x7C00);
  int exponent = 0;
  std::frexp(magnitude, &exponent);
  const int place = std::max(exponent - 11, -24);  // of the last bit
  const auto rounded =
      static_cast<float>(std::ldexp(std::nearbyint(std::ldexp(magnitude, -place)), place));
  return static_cast<std::uint16_t>(sign | float_to_f16(rounded));
}

// Every kind of float: all exponents, mantissas near ties, both signs.
std::vector<float> samples() {
  Random random(1);
  std::vector<float> all = {0.0f,
                            -0.0f,
                            kInfinity,
                            -kInfinity,
                            std::nanf(""),
                            -std::nanf("3"),
                            std::bit_cast<float>(0x7F80'0001u)};
  for (std::uint32_t top = 0; top < 0x10000; top += 16) {  // sign, exponent, 3 bits
    for (const std::uint32_t rest : {0u, 1u, 0xF000u, 0xEFFFu, 0xF001u, 0xF'FFFFu, 0x1000u}) {
      all.push_back(std::bit_cast<float>((top << 16) + rest));
    }
    all.push_back(
        std::bit_cast<float>((top << 16) + static_cast<std::uint32_t>(random() % 0x10'0000)));
  }
  return all;
}

const int kExponents[] = {0, 1, -1, 12, -37, 100, kMinF16Exponent, kMaxF16Exponent};

class ScaledHalfTest : public ::testing::TestWithParam<const Variant*> {
 protected:
  const Variant& variant() const { return *GetParam(); }
};

TEST_P(ScaledHalfTest, EncodingScalesAndRoundsOnce) {
  const std::vector<float> in = samples();
  std::vector<std::uint16_t> out(in.size());
  for (const int exponent : kExponents) {
    variant().f32_to_f16_scaled(out.data(), in.data(), in.size(), std::ldexp(1.0f, exponent), 0);
    for (std::size_t i = 0; i < in.size(); ++i) {
      ASSERT_EQ(out[i], half_of(std::ldexp(static_cast<double>(in[i]), exponent)))
          << in[i] << " * 2^" << exponent;
    }
  }
}

TEST_P(ScaledHalfTest, DecodingIsTheNumberTimesThePower) {
  std::vector<std::uint16_t> in(65536);
  for (std::size_t i = 0; i < in.size(); ++i) in[i] = static_cast<std::uint16_t>(i);
  std::vector<float> out(in.size());
  for (const int exponent : kExponents) {
    variant().f16_to_f32_scaled(out.data(), in.data(), in.size(), std::ldexp(1.0f, -exponent));
    for (std::size_t i = 0; i < in.size(); ++i) {
      const double exact = std::ldexp(static_cast<double>(f16_to_float(in[i])), -exponent);
      const auto expected =
          std::isnan(exact) ? kFloatNan : std::bit_cast<std::uint32_t>(static_cast<float>(exact));
      ASSERT_EQ(std::bit_cast<std::uint32_t>(out[i]), expected) << i << " * 2^" << -exponent;
    }
  }
}

TEST_P(ScaledHalfTest, AccumulatingAddsTheExactNumberAndRoundsOnce) {
  Random random(2);
  std::vector<std::uint16_t> in(65536);
  std::vector<float> acc(in.size()), out(in.size());
  for (std::size_t i = 0; i < in.size(); ++i) {
    in[i] = static_cast<std::uint16_t>(i);
    acc[i] = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
  }
  for (const int exponent : {0, 5, -60, 100}) {
    variant().accumulate_f16_scaled(out.data(), acc.data(), in.data(), in.size(),
                                    std::ldexp(1.0f, -exponent));
    for (std::size_t i = 0; i < in.size(); ++i) {
      const float addend = std::ldexp(f16_to_float(in[i]), -exponent);
      volatile float sum = acc[i] + addend;
      const auto expected = std::isnan(sum) ? kFloatNan : std::bit_cast<std::uint32_t>(float{sum});
      ASSERT_EQ(std::bit_cast<std::uint32_t>(out[i]), expected) << acc[i] << " + " << addend;
    }
    std::vector<float> in_place = acc;
    variant().accumulate_f16_scaled(in_place.data(), in_place.data(), in.data(), in.size(),
                                    std::ldexp(1.0f, -exponent));
    ASSERT_EQ(std::memcmp(in_place.data(), out.data(), 4 * out.size()), 0);
  }
}

TEST_P(ScaledHalfTest, EveryLengthAndAlignmentGivesThePortableBitsWithinBounds) {
  Random random(3);
  for (const std::size_t count : testing::lengths()) {
    Bytes floats(4 * count, 4 * random()), halves(2 * count, 2 * random());
    testing::fill(floats, Dtype::kF32, random);
    testing::fill(halves, Dtype::kF16, random);
    const auto run = [&](const Variant& by, Bytes& narrow, Bytes& wide, Bytes& sum) {
      const auto* in = reinterpret_cast<const float*>(floats.data());
      const auto* packed = reinterpret_cast<const std::uint16_t*>(halves.data());
      by.f32_to_f16_scaled(reinterpret_cast<std::uint16_t*>(narrow.data()), in, count, 0x1p-20f, 0);
      by.f16_to_f32_scaled(reinterpret_cast<float*>(wide.data()), packed, count, 0x1p-20f);
      by.accumulate_f16_scaled(reinterpret_cast<float*>(sum.data()), in, packed, count, 0x1p20f);
      return by.largest_finite(in, count);
    };
    Bytes narrow(2 * count, 2 * random()), wide(4 * count, 4 * random()), sum(4 * count, 0);
    Bytes narrow_portable(2 * count, 0), wide_portable(4 * count, 0), sum_portable(4 * count, 0);
    ASSERT_EQ(run(variant(), narrow, wide, sum),
              run(kPortableVariant, narrow_portable, wide_portable, sum_portable));
    ASSERT_EQ(narrow, narrow_portable) << count;
    ASSERT_EQ(wide, wide_portable) << count;
    ASSERT_EQ(sum, sum_portable) << count;
    ASSERT_TRUE(narrow.guards_intact() && wide.guards_intact() && sum.guards_intact());
  }
}

TEST_P(ScaledHalfTest, TheLargestIsThatOfTheFiniteOnes) {
  const auto largest = [&](const std::vector<float>& in) {
    return variant().largest_finite(in.data(), in.size());
  };
  EXPECT_EQ(largest({}), 0);
  EXPECT_EQ(largest({kInfinity, std::nanf(""), -kInfinity}), 0);
  EXPECT_EQ(largest({1, -3, kInfinity, 2, std::nanf("")}), 3);
  EXPECT_EQ(largest({-std::numeric_limits<float>::max(), 1}), std::numeric_limits<float>::max());
  EXPECT_EQ(largest({0, -std::numeric_limits<float>::denorm_min()}),
            std::numeric_limits<float>::denorm_min());
  for (std::size_t place = 0; place < 100; ++place) {
    std::vector<float> in(100, 1.0f);
    in[place] = -2;
    in[(place + 50) % 100] = kInfinity;
    ASSERT_EQ(largest(in), 2) << place;
  }
}

// Both in one pass, for every pair of lengths around the vector's and the step's.
TEST_P(ScaledHalfTest, ConvertingABlockFindsTheLargestOfTheNext) {
  Random random(5);
  for (const std::size_t count : {0, 1, 15, 16, 31, 32, 33, 100, 1000}) {
    for (const std::size_t next : {0, 1, 7, 16, 32, 33, 99, 101, 1000}) {
      Bytes in(4 * (count + next), 4 * random());
      testing::fill(in, Dtype::kF32, random);
      const auto* floats = reinterpret_cast<const float*>(in.data());
      Bytes out(2 * count, 2 * random()), plain(2 * count, 0);
      const float largest = variant().f32_to_f16_scaled(
          reinterpret_cast<std::uint16_t*>(out.data()), floats, count, 0x1p-20f, next);
      kPortableVariant.f32_to_f16_scaled(reinterpret_cast<std::uint16_t*>(plain.data()), floats,
                                         count, 0x1p-20f, 0);
      ASSERT_EQ(out, plain) << count << ", then " << next;
      ASSERT_EQ(largest, kPortableVariant.largest_finite(floats + count, next))
          << count << ", then " << next;
      ASSERT_TRUE(out.guards_intact());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Host, ScaledHalfTest,
                         ::testing::ValuesIn(host_variants().begin(), host_variants().end()),
                         [](const auto& instance) { return std::string(instance.param->name); });

TEST(ScaledHalf, TheExponentBringsTheLargestToTheTopWithoutOverflow) {
  EXPECT_EQ(f16_exponent(0), 0);
  EXPECT_EQ(f16_exponent(kInfinity), 0);
  EXPECT_EQ(f16_exponent(std::nanf("")), 0);
  EXPECT_EQ(f16_exponent(1), 15);
  EXPECT_EQ(f16_exponent(-65504), 0);
  EXPECT_EQ(f16_exponent(65519.996f), 0);
  EXPECT_EQ(f16_exponent(65520), -1);  // would round to infinity
  EXPECT_EQ(f16_exponent(1e6f), -4);
  for (std::uint32_t bits = 1; bits < 0x7F80'0000; bits += 4099) {
    const auto largest = std::bit_cast<float>(bits);
    const int exponent = f16_exponent(largest);
    ASSERT_GE(exponent, kMinF16Exponent);
    ASSERT_LE(exponent, kMaxF16Exponent);
    ASSERT_LT(std::ldexp(static_cast<double>(largest), exponent), 65520) << largest;
    if (exponent < kMaxF16Exponent) {
      ASSERT_GE(std::ldexp(static_cast<double>(largest), exponent + 1), 65520) << largest;
    }
  }
}

// A whole block loses nothing but the rounding to 11 bits, down to the least number of float32.
TEST(ScaledHalf, ABlockOfAnySizeOfNumbersComesBackWithinARounding) {
  Random random(4);
  for (int scale = -149; scale < 127; ++scale) {
    std::vector<float> in(257);
    for (float& x : in) {
      x = static_cast<float>(std::ldexp(static_cast<double>(random() % 8192) / 4096.0 - 1, scale));
    }
    in[0] = std::ldexp(1.0f, scale);
    const int exponent = f16_exponent(largest_finite(in.data(), in.size()));
    std::vector<std::uint16_t> halves(in.size());
    std::vector<float> out(in.size()), sum(in.size());
    f32_to_f16_scaled(halves.data(), in.data(), in.size(), exponent);
    f16_to_f32_scaled(out.data(), halves.data(), in.size(), exponent);
    accumulate_f16_scaled(sum.data(), out.data(), halves.data(), in.size(), exponent);
    for (std::size_t i = 0; i < in.size(); ++i) {
      // Half a unit in the last of 11 bits; below 2^-29 of the largest, float16's least step.
      const double allowed = std::max(std::ldexp(std::fabs(static_cast<double>(in[i])), -11),
                                      std::ldexp(1.0, scale - 39));
      ASSERT_LE(std::fabs(static_cast<double>(out[i]) - in[i]), allowed) << in[i];
      ASSERT_EQ(sum[i], 2 * out[i]);
    }
  }
}

TEST(ScaledHalf, AnExponentOutOfRangeIsInfinityOrZero) {
  const std::uint16_t one = 0x3C00;
  float out = 0;
  for (const int exponent : {128, 150, 1000, std::numeric_limits<int>::max()}) {
    f16_to_f32_scaled(&out, &one, 1, -exponent);
    EXPECT_EQ(out, kInfinity) << exponent;
    f16_to_f32_scaled(&out, &one, 1, exponent);
    EXPECT_EQ(out, exponent > 149 ? 0 : std::ldexp(1.0f, -exponent)) << exponent;
  }
  f16_to_f32_scaled(&out, &one, 1, std::numeric_limits<int>::min());
  EXPECT_EQ(out, kInfinity);
  const float in = 1;
  std::uint16_t half = 0;
  f32_to_f16_scaled(&half, &in, 1, std::numeric_limits<int>::max());
  EXPECT_EQ(half, 0x7C00);
  f32_to_f16_scaled(&half, &in, 1, std::numeric_limits<int>::min());
  EXPECT_EQ(half, 0);
}

TEST(ScaledHalf, TheEntriesUseTheVariantOfTheHost) {
  const float in[] = {1.5f, -3, 100, kInfinity};
  std::uint16_t halves[2];
  EXPECT_EQ(f32_to_f16_scaled_then_largest(halves, in, 2, 4, 2), 100);
  float out[] = {1, 1};
  accumulate_f16_scaled(out, out, halves, 2, 4);
  EXPECT_EQ(out[0], 2.5f);
  EXPECT_EQ(out[1], -2);
}

}  // namespace
}  // namespace taco::kernels
