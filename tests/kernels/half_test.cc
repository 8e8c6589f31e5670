// The scalar conversions are the definition for all others, so they are held to arithmetic here.
#include "kernels/half.h"

#include <gtest/gtest.h>

#include <cmath>

namespace taco::kernels {
namespace {

// The value that float16 `half` stands for, from the format's definition.
double f16_value(int half) {
  const double sign = (half & 0x8000) != 0 ? -1 : 1;
  const int exponent = (half >> 10) & 31;
  const int mantissa = half & 1023;
  if (exponent == 0) return sign * std::ldexp(mantissa, -24);
  return sign * std::ldexp(1024 + mantissa, exponent - 25);
}

TEST(Half, EveryFloat16HasItsValueAndComesBack) {
  for (int half = 0; half < 65536; ++half) {
    const auto bits = static_cast<std::uint16_t>(half);
    const float value = f16_to_float(bits);
    const bool special = (half & 0x7C00) == 0x7C00;
    if (special && (half & 0x3FF) != 0) {
      ASSERT_TRUE(std::isnan(value)) << half;
      ASSERT_EQ(float_to_f16(value), half | 0x200) << half;
      continue;
    }
    if (special) {
      ASSERT_TRUE(std::isinf(value)) << half;
    } else {
      ASSERT_EQ(value, f16_value(half)) << half;
    }
    ASSERT_EQ(float_to_f16(value), half) << half;
  }
}

TEST(Half, BetweenTwoFloat16sTheNearerWinsAndTiesGoToEven) {
  for (int half = 0; half < 0x7BFF; ++half) {
    const auto low = static_cast<float>(f16_value(half));
    const auto high = static_cast<float>(f16_value(half + 1));
    const float middle = (low + high) / 2;
    const int even = half + (half & 1);
    ASSERT_EQ(float_to_f16(middle), even) << half;
    ASSERT_EQ(float_to_f16(std::nextafter(middle, low)), half) << half;
    ASSERT_EQ(float_to_f16(std::nextafter(middle, high)), half + 1) << half;
    ASSERT_EQ(float_to_f16(-middle), 0x8000 | even) << half;
  }
}

TEST(Half, Float16OverflowsToInfinityAtTheHalfwayPoint) {
  EXPECT_EQ(float_to_f16(65519.996f), 0x7BFF);
  EXPECT_EQ(float_to_f16(65520), 0x7C00);
  EXPECT_EQ(float_to_f16(-1e30f), 0xFC00);
}

TEST(Half, BetweenTwoBfloat16sTheNearerWinsAndTiesGoToEven) {
  for (std::uint32_t high = 0; high < 0x7F80; ++high) {
    const auto round = [&](std::uint32_t low) {
      return float_to_bf16(__builtin_bit_cast(float, high << 16 | low));
    };
    ASSERT_EQ(round(0), high);
    ASSERT_EQ(round(0x7FFF), high);
    ASSERT_EQ(round(0x8000), high + (high & 1));
    ASSERT_EQ(round(0x8001), high + 1);  // the largest becomes infinity
    ASSERT_EQ(bf16_to_float(static_cast<std::uint16_t>(high)),
              __builtin_bit_cast(float, high << 16));
  }
}

TEST(Half, Bfloat16KeepsNaNWhoseLeadingBitsAreZero) {
  EXPECT_EQ(float_to_bf16(__builtin_bit_cast(float, 0x7F800001)), 0x7FC0);
  EXPECT_EQ(float_to_bf16(__builtin_bit_cast(float, 0xFFFFFFFF)), 0x7FC0);
}

}  // namespace
}  // namespace taco::kernels
