// Every variant this host can run equals the portable one bit for bit.
#include <gtest/gtest.h>

#include <string>

#include "kernels/samples.h"
#include "kernels/variant.h"

namespace taco::kernels {
namespace {

using testing::Bytes;
using testing::Random;

class VariantTest : public ::testing::TestWithParam<const Variant*> {
 protected:
  const Variant& variant() const { return *GetParam(); }
};

std::string pair_name(ReduceOp op, Dtype dtype) {
  return std::string(name_of(op)) + " of " + name_of(dtype);
}

template <class Check>
void for_each_pair(Check check) {
  for (int op = 0; op < kReduceOps; ++op) {
    for (int dtype = 0; dtype < kDtypes; ++dtype) {
      check(static_cast<ReduceOp>(op), static_cast<Dtype>(dtype), op, dtype);
    }
  }
}

TEST_P(VariantTest, OffersTheSamePairsAsPortable) {
  for_each_pair([&](ReduceOp op, Dtype dtype, int i, int j) {
    EXPECT_EQ(variant().reduce[i][j] == nullptr, kPortableVariant.reduce[i][j] == nullptr)
        << pair_name(op, dtype);
  });
}

TEST_P(VariantTest, ReducesToTheSameBitsAtEveryLengthAndAlignment) {
  for_each_pair([&](ReduceOp op, Dtype dtype, int i, int j) {
    if (variant().reduce[i][j] == nullptr) return;
    const std::uint64_t seed = 1000 + 100 * i + j;
    Random random(seed);
    for (const std::size_t count : testing::lengths()) {
      SCOPED_TRACE(pair_name(op, dtype) + ", " + std::to_string(count) + " elements, seed " +
                   std::to_string(seed));
      const std::size_t bytes = count * size_of(dtype);
      Bytes a(bytes, random());
      Bytes b(bytes, random());
      testing::fill(a, dtype, random);
      testing::fill(b, dtype, random);
      const Bytes a_before = a;
      Bytes expected(bytes, 0);
      Bytes out(bytes, random());
      kPortableVariant.reduce[i][j](expected.data(), a.data(), b.data(), count);
      variant().reduce[i][j](out.data(), a.data(), b.data(), count);
      ASSERT_EQ(out, expected);
      ASSERT_TRUE(out.guards_intact());
      Bytes mirrored(bytes, random());
      variant().reduce[i][j](mirrored.data(), b.data(), a.data(), count);
      ASSERT_EQ(mirrored, expected) << "the operation does not commute";
      variant().reduce[i][j](a.data(), a.data(), b.data(), count);
      ASSERT_EQ(a, expected) << "in place of the first";
      variant().reduce[i][j](b.data(), a_before.data(), b.data(), count);
      ASSERT_EQ(b, expected) << "in place of the second";
      ASSERT_TRUE(a.guards_intact() && b.guards_intact());
    }
  });
}

TEST_P(VariantTest, ScalesToTheSameBits) {
  for (int j = 0; j < kDtypes; ++j) {
    const auto dtype = static_cast<Dtype>(j);
    ASSERT_EQ(variant().scale[j] == nullptr, kPortableVariant.scale[j] == nullptr);
    if (variant().scale[j] == nullptr) continue;
    Random random(7);
    for (const std::size_t count : testing::lengths()) {
      for (const double factor : {0.25, 1.0 / 3, -3.0, 0.1, 1e300}) {
        const std::size_t bytes = count * size_of(dtype);
        Bytes in(bytes, random());
        testing::fill(in, dtype, random);
        Bytes expected(bytes, 0);
        Bytes out(bytes, random());
        kPortableVariant.scale[j](expected.data(), in.data(), count, factor);
        variant().scale[j](out.data(), in.data(), count, factor);
        ASSERT_EQ(out, expected) << name_of(dtype) << " by " << factor << ", " << count;
        variant().scale[j](in.data(), in.data(), count, factor);
        ASSERT_EQ(in, expected) << name_of(dtype) << " in place";
        ASSERT_TRUE(in.guards_intact() && out.guards_intact());
      }
    }
  }
}

TEST_P(VariantTest, DividesToTheSameBits) {
  for (int j = 0; j < kDtypes; ++j) {
    const auto dtype = static_cast<Dtype>(j);
    if (variant().divide[j] == nullptr) continue;
    Random random(8);
    for (const std::size_t count : testing::lengths()) {
      for (const std::int64_t n : {1, 2, 3, 7, 64, 1000, -1}) {
        const std::size_t bytes = count * size_of(dtype);
        Bytes in(bytes, random());
        testing::fill(in, dtype, random);
        Bytes expected(bytes, 0);
        Bytes out(bytes, random());
        kPortableVariant.divide[j](expected.data(), in.data(), count, n);
        variant().divide[j](out.data(), in.data(), count, n);
        ASSERT_EQ(out, expected) << name_of(dtype) << " by " << n << ", " << count;
      }
    }
  }
}

TEST_P(VariantTest, AccumulatesHalvesToTheSameBits) {
  Random random(9);
  const auto check = [&](auto* function, auto* portable, Dtype dtype) {
    for (const std::size_t count : testing::lengths()) {
      Bytes in(2 * count, 2 * random());
      Bytes acc(4 * count, 4 * random());
      testing::fill(in, dtype, random);
      testing::fill(acc, Dtype::kF32, random);
      Bytes expected = acc;
      const auto* halves = reinterpret_cast<const std::uint16_t*>(in.data());
      portable(reinterpret_cast<float*>(expected.data()), halves, count);
      function(reinterpret_cast<float*>(acc.data()), halves, count);
      ASSERT_EQ(acc, expected) << name_of(dtype) << ", " << count;
      ASSERT_TRUE(acc.guards_intact());
    }
  };
  check(variant().accumulate_f16, kPortableVariant.accumulate_f16, Dtype::kF16);
  check(variant().accumulate_bf16, kPortableVariant.accumulate_bf16, Dtype::kBF16);
}

TEST_P(VariantTest, ConvertsEveryHalfToTheSameFloat) {
  std::vector<std::uint16_t> halves(65536);
  for (std::size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<std::uint16_t>(i);
  std::vector<float> expected(halves.size());
  std::vector<float> out(halves.size());
  kPortableVariant.f16_to_f32(expected.data(), halves.data(), halves.size());
  variant().f16_to_f32(out.data(), halves.data(), halves.size());
  EXPECT_EQ(std::memcmp(out.data(), expected.data(), 4 * out.size()), 0);
  kPortableVariant.bf16_to_f32(expected.data(), halves.data(), halves.size());
  variant().bf16_to_f32(out.data(), halves.data(), halves.size());
  EXPECT_EQ(std::memcmp(out.data(), expected.data(), 4 * out.size()), 0);
}

TEST_P(VariantTest, ConvertsFloatsOfEveryExponentToTheSameHalf) {
  Random random(10);
  std::vector<float> floats;
  for (std::uint32_t high = 0; high < 65536; ++high) {  // every sign, exponent, leading mantissa
    for (const std::uint32_t low :
         {0u, 1u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu, std::uint32_t(random() & 0xFFFF)}) {
      floats.push_back(__builtin_bit_cast(float, high << 16 | low));
    }
  }
  std::vector<std::uint16_t> expected(floats.size());
  std::vector<std::uint16_t> out(floats.size());
  kPortableVariant.f32_to_f16(expected.data(), floats.data(), floats.size());
  variant().f32_to_f16(out.data(), floats.data(), floats.size());
  for (std::size_t i = 0; i < floats.size(); ++i) {
    ASSERT_EQ(out[i], expected[i]) << std::hex << __builtin_bit_cast(std::uint32_t, floats[i]);
  }
  kPortableVariant.f32_to_bf16(expected.data(), floats.data(), floats.size());
  variant().f32_to_bf16(out.data(), floats.data(), floats.size());
  for (std::size_t i = 0; i < floats.size(); ++i) {
    ASSERT_EQ(out[i], expected[i]) << std::hex << __builtin_bit_cast(std::uint32_t, floats[i]);
  }
}

TEST_P(VariantTest, ConvertsOddLengthsAtAnyAlignmentWithinBounds) {
  Random random(11);
  for (const std::size_t count : testing::lengths()) {
    Bytes halves(2 * count, random());
    Bytes floats(4 * count, random());
    testing::fill(floats, Dtype::kF32, random);
    variant().f32_to_f16(reinterpret_cast<std::uint16_t*>(halves.data()),
                         reinterpret_cast<const float*>(floats.data()), count);
    ASSERT_TRUE(halves.guards_intact());
    Bytes expected(2 * count, 0);
    kPortableVariant.f32_to_f16(reinterpret_cast<std::uint16_t*>(expected.data()),
                                reinterpret_cast<const float*>(floats.data()), count);
    ASSERT_EQ(halves, expected);
    variant().f16_to_f32(reinterpret_cast<float*>(floats.data()),
                         reinterpret_cast<const std::uint16_t*>(halves.data()), count);
    ASSERT_TRUE(floats.guards_intact());
  }
}

INSTANTIATE_TEST_SUITE_P(Host, VariantTest,
                         ::testing::ValuesIn(host_variants().begin(), host_variants().end()),
                         [](const auto& instance) { return std::string(instance.param->name); });

}  // namespace
}  // namespace taco::kernels
