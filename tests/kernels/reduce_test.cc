// The meaning of each reduction, by example; variants_test.cc then holds every variant to it.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <complex>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "kernels/kernels.h"

namespace taco::kernels {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
const float kNaN = std::nanf("");

template <class T>
T reduce_one(ReduceOp op, Dtype dtype, T a, T b) {
  const ReduceFn function = reduce_function(op, dtype);
  EXPECT_NE(function, nullptr);
  T out{};
  if (function != nullptr) function(&out, &a, &b, 1);
  return out;
}

TEST(Reduce, IntegersWrapAround) {
  EXPECT_EQ(reduce_one<std::int8_t>(ReduceOp::kSum, Dtype::kI8, 127, 1), -128);
  EXPECT_EQ(reduce_one<std::uint8_t>(ReduceOp::kSum, Dtype::kU8, 255, 2), 1);
  EXPECT_EQ(reduce_one<std::int16_t>(ReduceOp::kProduct, Dtype::kI16, -32768, -1), -32768);
  EXPECT_EQ(reduce_one<std::int32_t>(ReduceOp::kProduct, Dtype::kI32, 65536, 65536), 0);
  EXPECT_EQ(reduce_one<std::int64_t>(ReduceOp::kSum, Dtype::kI64, INT64_MAX, 1), INT64_MIN);
}

TEST(Reduce, SignedAndUnsignedOrderDiffer) {
  EXPECT_EQ(reduce_one<std::int8_t>(ReduceOp::kMin, Dtype::kI8, -1, 1), -1);
  EXPECT_EQ(reduce_one<std::uint8_t>(ReduceOp::kMin, Dtype::kU8, 255, 1), 1);
  EXPECT_EQ(reduce_one<std::int64_t>(ReduceOp::kMax, Dtype::kI64, -5, -7), -5);
}

TEST(Reduce, BitwiseOperationsWorkOnIntegers) {
  EXPECT_EQ(reduce_one<std::int32_t>(ReduceOp::kBand, Dtype::kI32, 0b1100, 0b1010), 0b1000);
  EXPECT_EQ(reduce_one<std::int32_t>(ReduceOp::kBor, Dtype::kI32, 0b1100, 0b1010), 0b1110);
  EXPECT_EQ(reduce_one<std::int32_t>(ReduceOp::kBxor, Dtype::kI32, 0b1100, 0b1010), 0b0110);
}

TEST(Reduce, BoolsAreOrAndAndAndStayZeroOrOne) {
  const auto reduce = [](ReduceOp op, int a, int b) {
    return int{reduce_one<std::uint8_t>(op, Dtype::kBool, static_cast<std::uint8_t>(a),
                                        static_cast<std::uint8_t>(b))};
  };
  for (int a = 0; a < 3; ++a) {  // 2: a byte that torch counts as true
    for (int b = 0; b < 3; ++b) {
      EXPECT_EQ(reduce(ReduceOp::kSum, a, b), a || b);
      EXPECT_EQ(reduce(ReduceOp::kMax, a, b), a || b);
      EXPECT_EQ(reduce(ReduceOp::kBor, a, b), a || b);
      EXPECT_EQ(reduce(ReduceOp::kProduct, a, b), a && b);
      EXPECT_EQ(reduce(ReduceOp::kMin, a, b), a && b);
      EXPECT_EQ(reduce(ReduceOp::kBand, a, b), a && b);
      EXPECT_EQ(reduce(ReduceOp::kBxor, a, b), (a != 0) != (b != 0));
    }
  }
}

TEST(Reduce, MinAndMaxPropagateNaNFromEitherSide) {
  for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
    for (const float other : {0.0f, 1.0f, -kInf, kInf, kNaN}) {
      EXPECT_TRUE(std::isnan(reduce_one(op, Dtype::kF32, kNaN, other))) << name_of(op) << other;
      EXPECT_TRUE(std::isnan(reduce_one(op, Dtype::kF32, other, kNaN))) << name_of(op) << other;
    }
    EXPECT_TRUE(std::isnan(reduce_one(op, Dtype::kF64, std::nan(""), 1.0)));
    EXPECT_EQ(reduce_one<std::uint16_t>(op, Dtype::kF16, 0x7E00, 0x3C00), 0x7E00);
    EXPECT_EQ(reduce_one<std::uint16_t>(op, Dtype::kBF16, 0x3F80, 0x7F81), 0x7FC0);
  }
}

TEST(Reduce, MinAndMaxOrderTheZeros) {
  EXPECT_TRUE(std::signbit(reduce_one(ReduceOp::kMin, Dtype::kF32, 0.0f, -0.0f)));
  EXPECT_TRUE(std::signbit(reduce_one(ReduceOp::kMin, Dtype::kF32, -0.0f, 0.0f)));
  EXPECT_FALSE(std::signbit(reduce_one(ReduceOp::kMax, Dtype::kF32, 0.0f, -0.0f)));
  EXPECT_FALSE(std::signbit(reduce_one(ReduceOp::kMax, Dtype::kF32, -0.0f, 0.0f)));
}

TEST(Reduce, FloatsKeepInfinitiesAndDenormals) {
  EXPECT_EQ(reduce_one(ReduceOp::kSum, Dtype::kF32, kInf, -1.0f), kInf);
  EXPECT_TRUE(std::isnan(reduce_one(ReduceOp::kSum, Dtype::kF32, kInf, -kInf)));
  EXPECT_EQ(reduce_one(ReduceOp::kSum, Dtype::kF32, 1e-45f, 1e-45f), 2 * 1e-45f);
  EXPECT_EQ(reduce_one<std::uint16_t>(ReduceOp::kSum, Dtype::kF16, 1, 1), 2);
  EXPECT_EQ(reduce_one<std::uint16_t>(ReduceOp::kSum, Dtype::kBF16, 1, 1), 2);
  EXPECT_EQ(reduce_one<std::uint16_t>(ReduceOp::kSum, Dtype::kF16, 0x7BFF, 0x7BFF), 0x7C00);
}

TEST(Reduce, HalvesRoundOnceToNearestEven) {
  // 2048 + 1 lies halfway between 2048 and 2050 in float16, 2050 + 1 between 2050 and 2052.
  EXPECT_EQ(reduce_one<std::uint16_t>(ReduceOp::kSum, Dtype::kF16, 0x6800, 0x3C00), 0x6800);
  EXPECT_EQ(reduce_one<std::uint16_t>(ReduceOp::kSum, Dtype::kF16, 0x6801, 0x3C00), 0x6802);
  // 256 + 1 and 258 + 1 in bfloat16.
  EXPECT_EQ(reduce_one<std::uint16_t>(ReduceOp::kSum, Dtype::kBF16, 0x4380, 0x3F80), 0x4380);
  EXPECT_EQ(reduce_one<std::uint16_t>(ReduceOp::kSum, Dtype::kBF16, 0x4381, 0x3F80), 0x4382);
}

TEST(Reduce, ComplexNumbersAddAndMultiply) {
  using Complex = std::complex<float>;
  EXPECT_EQ(reduce_one(ReduceOp::kSum, Dtype::kC64, Complex(1, 2), Complex(3, 5)), Complex(4, 7));
  EXPECT_EQ(reduce_one(ReduceOp::kProduct, Dtype::kC64, Complex(1, 2), Complex(3, 5)),
            Complex(-7, 11));
  using Wide = std::complex<double>;
  EXPECT_EQ(reduce_one(ReduceOp::kProduct, Dtype::kC128, Wide(0, 1), Wide(0, 1)), Wide(-1, 0));
  using Halves = std::array<std::uint16_t, 2>;  // 1 + 2i, 3 + i and their sum
  EXPECT_EQ(reduce_one(ReduceOp::kSum, Dtype::kC32, Halves{0x3C00, 0x4000}, Halves{0x4200, 0x3C00}),
            (Halves{0x4400, 0x4200}));
  EXPECT_EQ(reduce_function(ReduceOp::kProduct, Dtype::kC32), nullptr);
}

TEST(Reduce, AverageAndPremultipliedSumAddHere) {
  EXPECT_EQ(reduce_one(ReduceOp::kAvg, Dtype::kF64, 1.5, 2.0), 3.5);
  EXPECT_EQ(reduce_one(ReduceOp::kPremulSum, Dtype::kF64, 1.5, 2.0), 3.5);
}

TEST(Reduce, UnsupportedPairsNameWhatIsSupported) {
  EXPECT_EQ(reduce_function(ReduceOp::kBand, Dtype::kF32), nullptr);
  EXPECT_EQ(reduce_function(ReduceOp::kMin, Dtype::kC64), nullptr);
  EXPECT_EQ(reduce_function(ReduceOp::kAvg, Dtype::kBool), nullptr);
  const Status status = check_supported(ReduceOp::kBand, Dtype::kF32);
  EXPECT_EQ(status.code(), Code::kUnsupported);
  EXPECT_EQ(status.message(),
            "reduction BAND of float32 is not supported; float32 supports SUM, AVG, PRODUCT, MIN, "
            "MAX, PREMUL_SUM; BAND supports int8, uint8, int16, int32, int64, bool");
  EXPECT_TRUE(check_supported(ReduceOp::kSum, Dtype::kBool).ok());
}

TEST(Reduce, ValuesOutsideTheEnumsAreUnsupported) {
  const auto dtype = static_cast<Dtype>(77);
  EXPECT_EQ(check_supported(ReduceOp::kSum, dtype).code(), Code::kUnsupported);
  EXPECT_EQ(check_supported(static_cast<ReduceOp>(77), Dtype::kF32).code(), Code::kUnsupported);
  EXPECT_EQ(size_of(dtype), 0u);
}

TEST(Divide, IntegersTruncateTowardZero) {
  const std::vector<std::int32_t> in{7, -7, INT32_MAX, INT32_MIN, 0};
  std::vector<std::int32_t> out(in.size());
  divide(Dtype::kI32, out.data(), in.data(), in.size(), 2);
  EXPECT_EQ(out, (std::vector<std::int32_t>{3, -3, INT32_MAX / 2, INT32_MIN / 2, 0}));
  std::int64_t wide = INT64_MIN;
  divide(Dtype::kI64, &wide, &wide, 1, -1);
  EXPECT_EQ(wide, INT64_MIN);
  std::uint8_t byte = 255;
  divide(Dtype::kU8, &byte, &byte, 1, 300);
  EXPECT_EQ(byte, 0);
}

TEST(Divide, EveryInt16ByManyDivisorsIsExact) {
  std::vector<std::int16_t> in;
  for (int i = INT16_MIN; i <= INT16_MAX; ++i) in.push_back(static_cast<std::int16_t>(i));
  std::vector<std::int16_t> out(in.size());
  for (int n = 1; n <= 64; ++n) {
    divide(Dtype::kI16, out.data(), in.data(), in.size(), n);
    for (std::size_t i = 0; i < in.size(); ++i) ASSERT_EQ(out[i], in[i] / n) << in[i] << '/' << n;
  }
}

TEST(Scale, IntegersAreExactForWholeFactorsAndReciprocals) {
  std::int64_t value = (std::int64_t{1} << 62) + 3;  // more digits than a double has
  scale(Dtype::kI64, &value, &value, 1, 1.0 / 3);
  EXPECT_EQ(value, ((std::int64_t{1} << 62) + 3) / 3);
  value = (std::int64_t{1} << 60) + 1;
  scale(Dtype::kI64, &value, &value, 1, 3.0);
  EXPECT_EQ(value, 3 * ((std::int64_t{1} << 60) + 1));
  std::int32_t small = -7;
  scale(Dtype::kI32, &small, &small, 1, 1.5);
  EXPECT_EQ(small, -10);
  std::int8_t byte = 100;
  scale(Dtype::kI8, &byte, &byte, 1, 1.5);
  EXPECT_EQ(byte, 127);  // saturates
}

TEST(Scale, FloatsRoundOnce) {
  float value = 3;
  scale(Dtype::kF32, &value, &value, 1, 0.1);
  EXPECT_EQ(value, 3 * 0.1f);
  value = 1;
  divide(Dtype::kF32, &value, &value, 1, 3);
  EXPECT_EQ(value, 1.0f / 3);
  std::complex<double> number(2, -4);
  scale(Dtype::kC128, &number, &number, 1, 0.5);
  EXPECT_EQ(number, std::complex<double>(1, -2));
}

TEST(Accumulate, AddsTheWireTypeInFloat) {
  float acc[2] = {4096, 1e-6f};
  const std::uint16_t in[2] = {0x3C00, 1};
  accumulate_f16_into_f32(acc, in, 2);
  EXPECT_EQ(acc[0], 4097);  // float16 itself could not hold it
  EXPECT_EQ(acc[1], 1e-6f + std::ldexp(1.0f, -24));
  const std::uint16_t brain[2] = {0x3F80, 0xFF80};
  accumulate_bf16_into_f32(acc, brain, 2);
  EXPECT_EQ(acc[0], 4098);
  EXPECT_EQ(acc[1], -kInf);
}

}  // namespace
}  // namespace taco::kernels
