#include "pg/codecs/half_codec.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/half.h"
#include "kernels/scaled_half.h"
#include "pg/codecs/coding_stats.h"
#include "support/coded_blocks.h"

namespace taco::pg {
namespace {

using namespace testing;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kLeast = std::numeric_limits<float>::denorm_min();

const Codec& f16() { return *half_codec(HalfFormat::kF16); }
const Codec& bf16() { return *half_codec(HalfFormat::kBF16); }

class EveryFormat : public ::testing::TestWithParam<HalfFormat> {
 protected:
  const Codec& codec() const { return *half_codec(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(HalfCodec, EveryFormat,
                         ::testing::Values(HalfFormat::kF16, HalfFormat::kBF16),
                         [](const auto& format) { return half_codec(format.param)->name(); });

// Through doubles, one element at a time.
Floats rounded(HalfFormat format, const Floats& values) {
  Floats result(values.size());
  for (std::size_t at = 0; at < values.size(); at += kHalfGroup) {
    const std::size_t end = std::min(values.size(), at + kHalfGroup);
    const int exponent =
        kernels::f16_exponent(kernels::largest_finite(values.data() + at, end - at));
    for (std::size_t i = at; i < end; ++i) {
      result[i] =
          format == HalfFormat::kBF16
              ? kernels::bf16_to_float(kernels::float_to_bf16(values[i]))
              : std::ldexp(
                    kernels::f16_to_float(kernels::float_to_f16(std::ldexp(values[i], exponent))),
                    -exponent);
    }
  }
  return result;
}

TEST_P(EveryFormat, values_are_rounded_once) {
  for (const std::size_t count : {std::size_t{1}, std::size_t{2}, std::size_t{3}, kHalfGroup - 1,
                                  kHalfGroup, kHalfGroup + 1, 3 * kHalfGroup + 77}) {
    for (const float scale : {1e-6f, 1.0f, 1e6f}) {
      const Floats values = normal_values(count, count, scale);
      EXPECT_EQ(bits_of(through(codec(), values)), bits_of(rounded(GetParam(), values)))
          << count << " values of about " << scale;
    }
  }
}

TEST_P(EveryFormat, a_block_is_as_long_as_promised) {
  for (const std::size_t count : {std::size_t{0}, std::size_t{1}, kHalfGroup, 2 * kHalfGroup + 5}) {
    Result<Block> block = encode(codec(), Floats(count, 1.0f));
    ASSERT_TRUE(block.ok());
    EXPECT_EQ(block->size(), codec().most(count * sizeof(float)));
    EXPECT_EQ(block->size(), codec().expected(count * sizeof(float)));
  }
  EXPECT_EQ(bf16().most(400), 200u);
  EXPECT_EQ(f16().most(400), 204u);
  EXPECT_EQ(f16().most(kHalfGroup * 4 + 4), kHalfGroup * 2 + 2 + 8);
}

TEST_P(EveryFormat, no_values_are_no_bytes) {
  EXPECT_EQ(through(codec(), {}), Floats());
  Floats nothing;
  const Status status = decode(codec(), Block(2), nothing);
  EXPECT_EQ(status.code(), Code::kMismatch) << status.message();
}

TEST_P(EveryFormat, nan_and_infinity_arrive_and_harm_no_neighbour) {
  const Floats arrived = through(codec(), {1.5f, kNan, kInfinity, -kInfinity, -0.25f, 0.0f, -0.0f});
  EXPECT_EQ(arrived[0], 1.5f);
  EXPECT_TRUE(std::isnan(arrived[1]));
  EXPECT_EQ(arrived[2], kInfinity);
  EXPECT_EQ(arrived[3], -kInfinity);
  EXPECT_EQ(arrived[4], -0.25f);
  EXPECT_EQ(bits_of({arrived[5], arrived[6]}), bits_of({0.0f, -0.0f}));
}

TEST_P(EveryFormat, blocks_without_a_finite_value_arrive) {
  for (const float value : {0.0f, kInfinity, -kInfinity}) {
    const Floats values(100, value);
    EXPECT_EQ(through(codec(), values), values);
  }
  for (const float value : through(codec(), Floats(100, kNan))) EXPECT_TRUE(std::isnan(value));
}

TEST(HalfCodec, large_and_small_gradients_keep_eleven_bits_of_float16) {
  for (const float scale : {1e-30f, 1e-9f, 1.0f, 1e6f, 1e30f}) {
    Floats values = normal_values(1000, 5, scale);
    const Floats arrived = through(f16(), values);
    for (std::size_t i = 0; i < values.size(); ++i) {
      ASSERT_NEAR(arrived[i], values[i], std::abs(values[i]) / 2048) << "scale " << scale;
    }
  }
}

TEST(HalfCodec, denormals_of_few_bits_are_exact_in_float16) {
  const Floats values = {kLeast, -kLeast, 3 * kLeast, 1000 * kLeast, 0.0f};
  EXPECT_EQ(bits_of(through(f16(), values)), bits_of(values));
}

// An outlier costs its own group bits, and no other.
TEST(HalfCodec, each_group_has_its_own_exponent) {
  Floats values(2 * kHalfGroup, 0x1.004p-40f);
  values[0] = 1e9f;
  const Floats arrived = through(f16(), values);
  EXPECT_EQ(arrived[1], 0.0f);
  EXPECT_EQ(arrived[kHalfGroup], 0x1.004p-40f);
}

TEST_P(EveryFormat, parts_of_any_size_give_the_same_block_and_the_same_result) {
  const Floats values = normal_values(5 * kHalfGroup + 3, 3);
  Result<Block> whole = encode(codec(), values);
  ASSERT_TRUE(whole.ok());
  for (const std::size_t budget : {std::size_t{1}, std::size_t{10'000}, std::size_t{200'000}}) {
    Result<Block> parts = encode(codec(), values, nullptr, 0, budget);
    ASSERT_TRUE(parts.ok());
    EXPECT_EQ(*parts, *whole);
    Floats arrived(values.size(), kUntouched);
    ASSERT_TRUE(decode(codec(), *whole, arrived, nullptr, budget).ok());
    EXPECT_EQ(arrived, rounded(GetParam(), values));
  }
}

TEST_P(EveryFormat, a_part_is_about_as_long_as_its_budget) {
  const Floats values(64 * kHalfGroup, 1.0f);
  Block block(codec().most(values.size() * sizeof(float)));
  Coding coding = coding_of(values, block);
  const std::size_t group = kHalfGroup * sizeof(float);
  Result<std::size_t> worked = codec().encode(coding, 3 * group - 1);
  ASSERT_TRUE(worked.ok());
  EXPECT_EQ(*worked, 3 * group);
  EXPECT_EQ(coding.read, 3 * group);
  EXPECT_FALSE(coding.done);
}

TEST_P(EveryFormat, decode_and_reduce_takes_every_operation_in_place_or_not) {
  const Floats values = normal_values(kHalfGroup + 4321, 1);
  const Floats operand = normal_values(values.size(), 2);
  Result<Block> block = encode(codec(), values);
  ASSERT_TRUE(block.ok());
  const Floats arrived = rounded(GetParam(), values);
  using kernels::ReduceOp;
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kPremulSum,
                            ReduceOp::kProduct, ReduceOp::kMin, ReduceOp::kMax}) {
    SCOPED_TRACE(kernels::name_of(op));
    Floats expected(values.size());
    kernels::reduce_function(op, kernels::Dtype::kF32)(expected.data(), operand.data(),
                                                       arrived.data(), values.size());
    Floats apart(values.size(), kUntouched);
    ASSERT_TRUE(decode(codec(), *block, apart, &operand, 50'000, op).ok());
    EXPECT_EQ(bits_of(apart), bits_of(expected));
    Floats in_place = operand;
    ASSERT_TRUE(decode(codec(), *block, in_place, &in_place, 50'000, op).ok());
    EXPECT_EQ(bits_of(in_place), bits_of(expected));
  }
}

TEST_P(EveryFormat, other_elements_than_float32_are_refused_by_name) {
  Floats values(4);
  Block block(100);
  Coding coding = coding_of(values, block);
  for (const auto dtype :
       {kernels::Dtype::kI32, kernels::Dtype::kC64, kernels::Dtype::kF64, kernels::Dtype::kBF16}) {
    coding.dtype = dtype;
    const Status encoding = codec().encode(coding, 100).status();
    const Status decoding = codec().decode(coding, 100).status();
    for (const Status& status : {encoding, decoding}) {
      EXPECT_EQ(status.code(), Code::kInvalidArgument);
      EXPECT_NE(status.message().find(codec().name()), std::string::npos) << status.message();
      EXPECT_NE(status.message().find(kernels::name_of(dtype)), std::string::npos)
          << status.message();
    }
  }
}

TEST_P(EveryFormat, half_an_element_and_too_little_room_are_refused) {
  Floats values(4);
  Block block(codec().most(16));
  Coding coding = coding_of(values, block);
  coding.source_bytes = 15;
  EXPECT_EQ(codec().encode(coding, 100).status().code(), Code::kInvalidArgument);
  coding = coding_of(values, block);
  coding.destination_bytes -= 1;
  EXPECT_EQ(codec().encode(coding, 100).status().code(), Code::kInternal);
}

TEST_P(EveryFormat, a_block_of_another_length_is_refused_with_figures) {
  const Floats values(100, 1.0f);
  Result<Block> block = encode(codec(), values);
  ASSERT_TRUE(block.ok());
  for (const std::size_t length : {std::size_t{0}, block->size() - 1, block->size() + 1}) {
    Block other = *block;
    other.resize(length);
    Floats destination(values.size(), kUntouched);
    const Status status = decode(codec(), other, destination);
    EXPECT_EQ(status.code(), Code::kMismatch);
    EXPECT_NE(status.message().find(std::to_string(length) + " bytes, not " +
                                    std::to_string(block->size())),
              std::string::npos)
        << status.message();
    EXPECT_EQ(destination, Floats(values.size(), kUntouched));
  }
}

TEST(HalfCodec, an_exponent_that_cannot_be_is_refused_before_anything_is_written) {
  const Floats values(kHalfGroup + 10, 1.0f);
  Result<Block> block = encode(f16(), values);
  ASSERT_TRUE(block.ok());
  for (const std::int32_t exponent :
       {kernels::kMinF16Exponent - 1, kernels::kMaxF16Exponent + 1, INT32_MIN, INT32_MAX}) {
    std::memcpy(block->data() + sizeof exponent + 2 * kHalfGroup, &exponent, sizeof exponent);
    Floats destination(values.size(), kUntouched);
    const Status status = decode(f16(), *block, destination);
    EXPECT_EQ(status.code(), Code::kMismatch);
    EXPECT_NE(status.message().find(std::to_string(exponent)), std::string::npos)
        << status.message();
    EXPECT_EQ(destination, Floats(values.size(), kUntouched));
  }
}

TEST_P(EveryFormat, damaged_blocks_are_refused_or_decoded) {
  int refused = 0, decoded = 0;
  for (std::uint64_t seed = 1; seed <= 2000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const Floats values = normal_values(1 + random() % 300, seed);
    Result<Block> block = encode(codec(), values);
    ASSERT_TRUE(block.ok());
    damage(*block, random);
    Floats destination(values.size(), kUntouched);
    const Status status = decode(codec(), *block, destination);
    ++(status.ok() ? decoded : refused);
    if (status.ok()) continue;
    EXPECT_EQ(status.code(), Code::kMismatch);
    EXPECT_EQ(destination, Floats(values.size(), kUntouched));
  }
  EXPECT_GT(refused, 100);
  EXPECT_GT(decoded, 100);
}

TEST(HalfCodec, one_format_is_one_object) {
  EXPECT_EQ(half_codec(HalfFormat::kF16), half_codec(HalfFormat::kF16));
  EXPECT_EQ(half_codec(HalfFormat::kBF16), half_codec(HalfFormat::kBF16));
  EXPECT_NE(half_codec(HalfFormat::kF16), half_codec(HalfFormat::kBF16));
  EXPECT_STRNE(f16().name(), bf16().name());
  EXPECT_FALSE(f16().has_memory());
}

TEST(HalfCodec, what_is_coded_is_counted) {
  const CodingStats before = coding_stats();
  const Floats values(3 * kHalfGroup, 1.0f);
  Result<Block> block = encode(bf16(), values, nullptr, 0, 1000);  // in three parts
  ASSERT_TRUE(block.ok());
  Floats arrived(values.size());
  ASSERT_TRUE(decode(bf16(), *block, arrived, nullptr, 1000).ok());
  const CodingStats after = coding_stats();
  EXPECT_EQ(after.blocks_encoded, before.blocks_encoded + 1);
  EXPECT_EQ(after.blocks_decoded, before.blocks_decoded + 1);
  EXPECT_EQ(after.bytes_before, before.bytes_before + 12 * kHalfGroup);
  EXPECT_EQ(after.bytes_after, before.bytes_after + 6 * kHalfGroup);
  EXPECT_GT(after.encode_seconds, before.encode_seconds);
  EXPECT_GT(after.decode_seconds, before.decode_seconds);
}

}  // namespace
}  // namespace taco::pg
