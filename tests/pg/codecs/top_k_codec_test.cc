#include "pg/codecs/top_k_codec.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

#include "pg/codecs/coding_stats.h"
#include "pg/codecs/top_k_block.h"
#include "support/coded_blocks.h"
#include "support/top_k_reference.h"

namespace taco::pg {
namespace {

using namespace testing;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kLeast = std::numeric_limits<float>::denorm_min();

std::shared_ptr<const Codec> codec_of(const TopKSettings& settings) {
  auto codec = top_k_codec(settings);
  EXPECT_TRUE(codec.ok()) << codec.status().message();
  return codec.ok() ? *codec : nullptr;
}

Feedback empty_feedback(std::size_t count) { return {.residual = Floats(count)}; }

TopKHeader header_of(const Block& block) {
  TopKHeader header;
  EXPECT_GE(block.size(), sizeof header);
  std::memcpy(&header, block.data(), std::min(block.size(), sizeof header));
  return header;
}

// One block after the other against the reference: what is sent, and what is kept.
void expect_like_reference(const TopKSettings& settings, std::size_t count, float scale) {
  SCOPED_TRACE(std::to_string(count) + " elements at " + std::to_string(settings.ratio));
  const auto codec = codec_of(settings);
  Feedback feedback = empty_feedback(count);
  TopKReference reference(settings.ratio, count);
  for (std::uint64_t step = 1; step <= 5; ++step) {
    const Floats gradient = normal_values(count, step, scale);
    EXPECT_EQ(bits_of(through(*codec, gradient, &feedback)), bits_of(reference.sent(gradient)));
    EXPECT_EQ(bits_of(feedback.residual), bits_of(reference.residual()));
  }
}

TEST(TopKCodec, the_largest_arrive_and_the_rest_stays) {
  for (const std::size_t count : {1, 2, 3, 49, 50, 51, 1000, 65'537}) {
    for (const double ratio : {1e-9, 0.001, 0.01, 0.25, 0.999, 1.0}) {
      expect_like_reference({.ratio = ratio}, count, 1);
    }
  }
  expect_like_reference({.ratio = 0.01}, kMaxTopKElements, 1);
  expect_like_reference({.ratio = 0.1}, 10'000, 1e-40f);
}

TEST(TopKCodec, k_is_the_ratio_rounded_and_one_at_least) {
  const auto values_at = [](double ratio, std::size_t count) {
    Feedback feedback = empty_feedback(count);
    Result<Block> block = encode(*codec_of({.ratio = ratio}), Floats(count, 1), &feedback);
    EXPECT_TRUE(block.ok());
    return header_of(*block).values;
  };
  EXPECT_EQ(values_at(0.01, 1), 1u);
  EXPECT_EQ(values_at(0.01, 149), 1u);
  EXPECT_EQ(values_at(0.01, 151), 2u);
  EXPECT_EQ(values_at(0.01, 1000), 10u);
  EXPECT_EQ(values_at(1.0, 1000), 1000u);
  EXPECT_EQ(values_at(0.9999, 1000), 1000u);
}

TEST(TopKCodec, zeros_and_equal_values_send_the_first) {
  for (const float value : {0.0f, 2.5f, -kLeast}) {
    Feedback feedback = empty_feedback(100);
    const Floats arrived = through(*codec_of({.ratio = 0.1}), Floats(100, value), &feedback);
    Floats expected(100);
    std::fill_n(expected.begin(), 10, value);
    EXPECT_EQ(arrived, expected);
    std::fill_n(expected.begin(), 10, 0.0f);
    std::fill_n(expected.begin() + 10, 90, value);
    EXPECT_EQ(feedback.residual, expected);
  }
}

TEST(TopKCodec, float16_values_leave_their_rounding_behind) {
  for (const float scale : {1e-40f, 1e-9f, 1.0f, 1e6f, 1e37f}) {
    SCOPED_TRACE(scale);
    const auto codec = codec_of({.ratio = 0.05, .f16_values = true});
    Feedback feedback = empty_feedback(20'000);
    TopKReference reference(0.05, 20'000);
    for (std::uint64_t step = 1; step <= 5; ++step) {
      reference.set_residual(feedback.residual);
      const Floats gradient = normal_values(20'000, step, scale);
      const Floats exact = reference.sent(gradient);
      const Floats arrived = through(*codec, gradient, &feedback);
      for (std::size_t i = 0; i < exact.size(); ++i) {
        ASSERT_NEAR(arrived[i], exact[i], std::abs(exact[i]) / 2048);
        // acc is arrived + kept, without any rounding.
        const double acc = static_cast<double>(exact[i]) + reference.residual()[i];
        ASSERT_EQ(static_cast<double>(arrived[i]) + feedback.residual[i], acc) << i;
      }
    }
  }
}

TEST(TopKCodec, float16_values_take_half_the_bytes) {
  Feedback feedback = empty_feedback(100'000);
  const Floats gradient = normal_values(100'000, 1);
  Result<Block> block = encode(*codec_of({.ratio = 0.01, .f16_values = true}), gradient, &feedback);
  ASSERT_TRUE(block.ok());
  const TopKHeader header = header_of(*block);
  EXPECT_EQ(header.kind, TopKKind::kF16);
  EXPECT_EQ(block->size(), sizeof header + 2 * 1000 + header.index_bytes);
  EXPECT_LT(header.index_bytes, 1150u);
}

// Rounded to float16 they would be infinite.
TEST(TopKCodec, values_near_the_largest_travel_as_float32) {
  const auto codec = codec_of({.ratio = 0.5, .f16_values = true});
  Feedback feedback = empty_feedback(4);
  constexpr float kLargest = std::numeric_limits<float>::max();
  const Floats gradient = {kLargest, 1, -kLargest, 2};
  EXPECT_EQ(through(*codec, gradient, &feedback), (Floats{kLargest, 0, -kLargest, 0}));
  EXPECT_EQ(feedback.residual, (Floats{0, 1, 0, 2}));
}

TEST(TopKCodec, a_block_with_nan_or_infinity_travels_as_it_is) {
  for (const float bad : {kNan, kInfinity, -kInfinity}) {
    for (const bool f16 : {false, true}) {
      const auto codec = codec_of({.ratio = 0.01, .f16_values = f16, .momentum = 0.5});
      Feedback feedback{.residual = normal_values(5000, 8), .momentum = normal_values(5000, 9)};
      const Feedback before = feedback;
      Floats gradient = normal_values(5000, 1);
      gradient[4321] = bad;
      EXPECT_EQ(bits_of(through(*codec, gradient, &feedback)), bits_of(gradient));
      EXPECT_EQ(feedback.residual, before.residual);
      EXPECT_EQ(feedback.momentum, before.momentum);
    }
  }
}

TEST(TopKCodec, a_sum_that_overflows_travels_as_it_is) {
  const auto codec = codec_of({.ratio = 0.5});
  Feedback feedback{.residual = {3e38f, 1}};
  EXPECT_EQ(through(*codec, {3e38f, 2}, &feedback), (Floats{3e38f, 2}));
  EXPECT_EQ(feedback.residual, (Floats{3e38f, 1}));
}

TEST(TopKCodec, no_block_is_longer_than_the_most) {
  for (const std::size_t count : {std::size_t{1}, std::size_t{1000}, std::size_t{100'000}}) {
    for (const double ratio : {1e-6, 0.01, 0.5, 1.0}) {
      for (const bool f16 : {false, true}) {
        const auto codec = codec_of({.ratio = ratio, .f16_values = f16});
        const std::uint64_t most = codec->most(count * sizeof(float));
        Feedback feedback = empty_feedback(count);
        Floats values(count, 1e-3f);
        values.back() = 1;  // far behind the first
        for (const float last : {1.0f, kNan, std::numeric_limits<float>::max()}) {
          values.back() = last;
          Result<Block> block = encode(*codec, values, &feedback);
          ASSERT_TRUE(block.ok());
          EXPECT_LE(block->size(), most);
          feedback = empty_feedback(count);
        }
      }
    }
  }
}

TEST(TopKCodec, what_is_expected_is_about_what_comes) {
  for (const double ratio : {0.0005, 0.001, 0.01, 0.1, 0.5}) {
    for (const bool f16 : {false, true}) {
      const auto codec = codec_of({.ratio = ratio, .f16_values = f16});
      Feedback feedback = empty_feedback(400'000);
      Result<Block> block = encode(*codec, normal_values(400'000, 1), &feedback);
      ASSERT_TRUE(block.ok());
      const auto expected = static_cast<double>(codec->expected(1'600'000));
      EXPECT_NEAR(static_cast<double>(block->size()), expected, expected / 50) << ratio;
      EXPECT_LE(expected, static_cast<double>(codec->most(1'600'000)));
    }
  }
}

// The planner asks about a whole shard; its blocks are what is sent.
TEST(TopKCodec, a_shard_is_as_long_as_its_blocks) {
  const auto codec = codec_of({.ratio = 0.01});
  const std::uint64_t block = kMaxTopKElements * sizeof(float);
  EXPECT_EQ(codec->most(3 * block + 400), 3 * codec->most(block) + codec->most(400));
  EXPECT_EQ(codec->expected(3 * block + 400), 3 * codec->expected(block) + codec->expected(400));
  EXPECT_EQ(codec->most(0), 0u);
  EXPECT_EQ(codec->expected(0), 0u);
}

TEST(TopKCodec, no_elements_are_no_bytes) {
  Feedback feedback;
  EXPECT_EQ(through(*codec_of({}), {}, &feedback), Floats());
}

TEST(TopKCodec, blocks_of_all_hosts_are_divided_and_added_up_in_place_or_not) {
  for (const bool f16 : {false, true}) {
    const auto codec = codec_of({.ratio = 0.1, .f16_values = f16});
    const std::size_t count = 30'000;
    const Floats operand = normal_values(count, 77);
    for (const float last : {1.0f, kInfinity}) {  // a sparse block, and a dense one
      Floats gradient = normal_values(count, 5);
      gradient.back() = last;
      Feedback feedback = empty_feedback(count);
      Result<Block> block = encode(*codec, gradient, &feedback);
      ASSERT_TRUE(block.ok());
      Floats arrived(count);
      ASSERT_TRUE(decode(*codec, *block, arrived).ok());
      for (const std::uint32_t divisor : {1, 3}) {
        Floats divided(count), expected(count);
        for (std::size_t i = 0; i < count; ++i) {
          divided[i] = arrived[i] / static_cast<float>(divisor);
          expected[i] = operand[i] + divided[i];
        }
        for (const std::size_t budget : {std::size_t{5}, std::size_t{7777}, kAtOnce}) {
          const auto run = [&](Floats& to, const Floats* left) {
            return decode(*codec, *block, to, left, budget, kernels::ReduceOp::kSum, divisor).ok();
          };
          Floats alone(count, kUntouched), apart(count, kUntouched), in_place = operand;
          ASSERT_TRUE(run(alone, nullptr) && run(apart, &operand) && run(in_place, &in_place));
          EXPECT_EQ(bits_of(alone), bits_of(divided));
          EXPECT_EQ(bits_of(apart), bits_of(expected));
          EXPECT_EQ(bits_of(in_place), bits_of(expected));
        }
      }
    }
  }
}

TEST(TopKCodec, parts_of_any_size_give_the_same) {
  const auto codec = codec_of({.ratio = 0.02});
  for (const float last : {1.0f, kNan}) {
    Floats gradient = normal_values(20'000, 5);
    gradient.back() = last;
    Feedback feedback = empty_feedback(gradient.size());
    Result<Block> whole = encode(*codec, gradient, &feedback);
    ASSERT_TRUE(whole.ok());
    Feedback again = empty_feedback(gradient.size());
    Result<Block> parts = encode(*codec, gradient, &again, 0, 999);
    ASSERT_TRUE(parts.ok());
    EXPECT_EQ(*parts, *whole);
    Floats at_once(gradient.size(), kUntouched), in_parts(gradient.size(), kUntouched);
    ASSERT_TRUE(decode(*codec, *whole, at_once).ok());
    ASSERT_TRUE(decode(*codec, *whole, in_parts, nullptr, 999).ok());
    EXPECT_EQ(bits_of(in_parts), bits_of(at_once));
  }
}

// As two operations of one engine do.
TEST(TopKCodec, blocks_may_be_decoded_in_turns) {
  const auto codec = codec_of({.ratio = 0.02, .f16_values = true});
  std::vector<Block> blocks;
  std::vector<Floats> whole, arrived(2, Floats(20'000, kUntouched));
  for (const std::uint64_t seed : {1, 2}) {
    Feedback feedback = empty_feedback(20'000);
    Result<Block> block = encode(*codec, normal_values(20'000, seed), &feedback);
    ASSERT_TRUE(block.ok());
    blocks.push_back(*block);
    whole.emplace_back(20'000);
    ASSERT_TRUE(decode(*codec, *block, whole.back()).ok());
  }
  Coding codings[] = {coding_of(blocks[0], arrived[0]), coding_of(blocks[1], arrived[1])};
  while (!codings[0].done || !codings[1].done) {
    for (Coding& coding : codings) ASSERT_TRUE(codec->decode(coding, 30'000).ok());
  }
  EXPECT_EQ(arrived, whole);
}

TEST(TopKCodec, what_can_only_be_added_up_is_not_reduced_otherwise) {
  const auto codec = codec_of({});
  Feedback feedback = empty_feedback(10);
  Result<Block> block = encode(*codec, Floats(10, 1), &feedback);
  ASSERT_TRUE(block.ok());
  const Floats operand(10, 1);
  using kernels::ReduceOp;
  for (const ReduceOp op : {ReduceOp::kProduct, ReduceOp::kMin, ReduceOp::kMax}) {
    Floats destination(10, kUntouched);
    const Status status = decode(*codec, *block, destination, &operand, kAtOnce, op);
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_EQ(destination, Floats(10, kUntouched));
  }
  for (const ReduceOp op : {ReduceOp::kAvg, ReduceOp::kPremulSum}) {
    Floats destination(10);
    EXPECT_TRUE(decode(*codec, *block, destination, &operand, kAtOnce, op).ok());
  }
}

void expect_refused(const Result<Block>& block, const std::string& text) {
  ASSERT_FALSE(block.ok());
  EXPECT_EQ(block.status().code(), Code::kInvalidArgument);
  EXPECT_NE(block.status().message().find(text), std::string::npos) << block.status().message();
}

TEST(TopKCodec, a_block_without_what_it_needs_is_refused_with_figures) {
  const auto codec = codec_of({});
  const auto with_momentum = codec_of({.momentum = 0.9});
  Feedback feedback = empty_feedback(100);
  expect_refused(encode(*codec, Floats(10)), "needs a Feedback");
  expect_refused(encode(*codec, Floats(60), &feedback, 50), "at least 110 elements, not 100");
  expect_refused(encode(*with_momentum, Floats(10), &feedback), "a momentum of 100 elements");
  Feedback large = empty_feedback(kMaxTopKElements + 1);
  expect_refused(encode(*codec, Floats(kMaxTopKElements + 1), &large),
                 "at most 1048576 elements, not 1048577");
  Floats destination(kMaxTopKElements + 1);
  EXPECT_EQ(decode(*codec, Block(20), destination).code(), Code::kInvalidArgument);
  EXPECT_EQ(feedback.residual, Floats(100));
}

TEST(TopKCodec, settings_outside_their_range_are_refused_with_the_value) {
  for (const double ratio : {0.0, -0.01, 1.0000001, 2.0, HUGE_VAL, std::nan("")}) {
    const auto codec = top_k_codec({.ratio = ratio});
    ASSERT_FALSE(codec.ok());
    EXPECT_EQ(codec.status().code(), Code::kInvalidArgument);
  }
  for (const double momentum : {-0.1, 1.0, 5.0, std::nan("")}) {
    EXPECT_FALSE(top_k_codec({.momentum = momentum}).ok());
  }
  EXPECT_NE(top_k_codec({.ratio = 1.5}).status().message().find("1.5"), std::string::npos);
}

TEST(TopKCodec, equal_settings_are_one_object_and_others_have_another_name) {
  std::map<std::string, std::shared_ptr<const Codec>> codecs;
  const std::vector<TopKSettings> all = {{},
                                         {.ratio = 0.1},
                                         {.ratio = std::nextafter(0.1, 1.0)},
                                         {.f16_values = true},
                                         {.momentum = 0.9},
                                         {.f16_values = true, .momentum = 0.9}};
  for (const TopKSettings& settings : all) {
    const auto codec = codec_of(settings);
    EXPECT_EQ(codec, codec_of(settings));
    EXPECT_TRUE(codec->has_memory());
    EXPECT_TRUE(codecs.emplace(codec->name(), codec).second) << codec->name();
  }
}

TEST(TopKCodec, what_is_coded_is_counted) {
  const CodingStats before = coding_stats();
  Feedback feedback = empty_feedback(1000);
  Result<Block> block = encode(*codec_of({}), normal_values(1000, 1), &feedback, 0, 100);
  ASSERT_TRUE(block.ok());
  const CodingStats after = coding_stats();
  EXPECT_EQ(after.blocks_encoded, before.blocks_encoded + 1);
  EXPECT_EQ(after.blocks_decoded, before.blocks_decoded);
  EXPECT_EQ(after.bytes_before, before.bytes_before + 4000);
  EXPECT_EQ(after.bytes_after, before.bytes_after + block->size());
  EXPECT_GT(after.encode_seconds, before.encode_seconds);
}

}  // namespace
}  // namespace taco::pg
