// Nothing that is not sent is lost: residuals over many steps, held back, taken back and rescaled.
#include "pg/codecs/feedback.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "pg/codecs/top_k_codec.h"
#include "support/coded_blocks.h"
#include "support/top_k_reference.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace taco::pg {
namespace {

using namespace testing;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::shared_ptr<const Codec> codec_of(const TopKSettings& settings) {
  auto codec = top_k_codec(settings);
  EXPECT_TRUE(codec.ok()) << codec.status().message();
  return codec.ok() ? *codec : nullptr;
}

// Whole numbers: their sums are exact in any order.
Floats whole_numbers(std::size_t count, std::uint64_t seed, int most) {
  std::mt19937_64 random(seed);
  Floats values(count);
  for (float& value : values)
    value = static_cast<float>(static_cast<int>(random() % (2 * most + 1)) - most);
  return values;
}

Extent all_of(const Feedback& feedback) { return {0, feedback.residual.size()}; }

void add(Floats& sum, const Floats& values) {
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += values[i];
}

TEST(Feedback, what_was_sent_and_what_is_kept_add_up_to_all_gradients) {
  for (const bool f16 : {false, true}) {
    for (const double ratio : {0.001, 0.01, 0.3}) {
      const auto codec = codec_of({.ratio = ratio, .f16_values = f16});
      const std::size_t count = 5000;
      Feedback feedback{.residual = Floats(count)};
      Floats gradients(count), sent(count);
      for (std::uint64_t step = 1; step <= 100; ++step) {
        // Large enough for float16 to round, small enough for float32 not to.
        const Floats gradient = whole_numbers(count, step, 1 << 16);
        add(gradients, gradient);
        add(sent, through(*codec, gradient, &feedback));
      }
      add(sent, feedback.residual);
      EXPECT_EQ(sent, gradients) << "ratio " << ratio << ", float16 " << f16;
    }
  }
}

TEST(Feedback, whatever_keeps_coming_is_sent_at_last) {
  const auto codec = codec_of({.ratio = 0.01});
  Floats gradient(1000);
  for (std::size_t i = 0; i < gradient.size(); ++i) gradient[i] = i % 2 == 0 ? 1 : -20;
  Feedback feedback{.residual = Floats(1000)};
  std::vector<bool> came(1000);
  for (int step = 0; step < 3000; ++step) {
    const Floats arrived = through(*codec, gradient, &feedback);
    for (std::size_t i = 0; i < came.size(); ++i) came[i] = came[i] || arrived[i] != 0;
  }
  EXPECT_EQ(came, std::vector<bool>(1000, true));
}

TEST(Feedback, momentum_is_corrected_as_the_paper_says) {
  const auto codec = codec_of({.ratio = 0.02, .momentum = 0.9});
  Feedback feedback{.residual = Floats(3000), .momentum = Floats(3000)};
  TopKReference reference(0.02, 3000, 0.9f);
  for (std::uint64_t step = 1; step <= 20; ++step) {
    const Floats gradient = normal_values(3000, step);
    EXPECT_EQ(through(*codec, gradient, &feedback), reference.sent(gradient));
    EXPECT_EQ(bits_of(feedback.residual), bits_of(reference.residual()));
    EXPECT_EQ(bits_of(feedback.momentum), bits_of(reference.momentum()));
  }
}

// Blocks of one shard use their own part of it.
TEST(Feedback, blocks_of_a_shard_do_not_touch_each_other) {
  const auto codec = codec_of({.ratio = 0.1});
  Feedback feedback{.residual = Floats(1000, 0.5f), .undoable = true};
  ASSERT_TRUE(encode(*codec, normal_values(300, 1), &feedback, 400).ok());
  EXPECT_EQ(Floats(feedback.residual.begin(), feedback.residual.begin() + 400), Floats(400, 0.5f));
  EXPECT_EQ(Floats(feedback.residual.begin() + 700, feedback.residual.end()), Floats(300, 0.5f));
  EXPECT_EQ(std::count(feedback.residual.begin() + 400, feedback.residual.begin() + 700, 0.0f), 30);
}

// Four parameters, of which the second and the fourth have no gradient.
class HeldBack : public ::testing::TestWithParam<TopKSettings> {
 protected:
  HeldBack() {
    feedback_.residual = normal_values(1000, 1, 100);
    feedback_.begins = {0, 100, 350, 800};
    if (GetParam().momentum != 0) feedback_.momentum = normal_values(1000, 2, 100);
    std::fill_n(gradient_.begin() + 100, 250, 0.0f);
    std::fill_n(gradient_.begin() + 800, 200, -0.0f);
  }
  static Floats part(const Floats& values, std::size_t begin, std::size_t end) {
    return Floats(values.begin() + static_cast<std::ptrdiff_t>(begin),
                  values.begin() + static_cast<std::ptrdiff_t>(end));
  }
  void expect_held(const Feedback& before, std::size_t begin, std::size_t end) const {
    EXPECT_EQ(bits_of(part(feedback_.residual, begin, end)),
              bits_of(part(before.residual, begin, end)));
    if (before.momentum.empty()) return;
    EXPECT_EQ(bits_of(part(feedback_.momentum, begin, end)),
              bits_of(part(before.momentum, begin, end)));
  }

  const std::shared_ptr<const Codec> codec_ = codec_of(GetParam());
  Feedback feedback_;
  Floats gradient_ = normal_values(1000, 3);
};
INSTANTIATE_TEST_SUITE_P(Feedback, HeldBack,
                         ::testing::Values(TopKSettings{.ratio = 0.1},
                                           TopKSettings{.ratio = 0.1, .f16_values = true},
                                           TopKSettings{.ratio = 0.1, .momentum = 0.9},
                                           TopKSettings{.ratio = 1.0, .momentum = 0.9}));

TEST_P(HeldBack, a_parameter_without_gradient_keeps_its_residual) {
  const Feedback before = feedback_;
  const Floats arrived = through(*codec_, gradient_, &feedback_);
  for (const auto& [begin, end] : {std::pair{100, 350}, std::pair{800, 1000}}) {
    expect_held(before, begin, end);
    for (int i = begin; i < end; ++i) EXPECT_EQ(arrived[i], 0.0f) << i;
  }
  const auto sent = std::count_if(arrived.begin(), arrived.end(), [](float v) { return v != 0; });
  EXPECT_EQ(sent, std::min<long>(550, std::lround(1000 * GetParam().ratio)));
}

TEST_P(HeldBack, without_any_gradient_nothing_changes_and_zeros_are_sent) {
  const Feedback before = feedback_;
  EXPECT_EQ(through(*codec_, Floats(1000), &feedback_), Floats(1000));
  expect_held(before, 0, 1000);
}

TEST_P(HeldBack, without_parameters_nothing_is_held_back) {
  feedback_.begins.clear();
  const Floats arrived = through(*codec_, gradient_, &feedback_);
  EXPECT_NE(part(arrived, 100, 350), Floats(250));
}

TEST_P(HeldBack, a_block_holds_back_what_has_no_gradient_in_it) {
  const Feedback before = feedback_;
  // Elements 200 to 900 of the shard, as one block.
  ASSERT_TRUE(encode(*codec_, part(gradient_, 200, 900), &feedback_, 200).ok());
  expect_held(before, 0, 350);
  expect_held(before, 800, 1000);
  EXPECT_NE(part(feedback_.residual, 350, 800), part(before.residual, 350, 800));
}

TEST_P(HeldBack, nothing_is_lost_where_the_block_has_to_travel_as_it_is) {
  const Feedback before = feedback_;
  gradient_[50] = kNan;
  EXPECT_EQ(bits_of(through(*codec_, gradient_, &feedback_)), bits_of(gradient_));
  expect_held(before, 0, 1000);
}

TEST_P(HeldBack, what_was_taken_back_leaves_what_was_held_back_alone) {
  feedback_.undoable = true;
  const Feedback before = feedback_;
  through(*codec_, gradient_, &feedback_);
  restore(feedback_, all_of(feedback_));
  expect_held(before, 100, 350);
  expect_held(before, 800, 1000);
}

// As if nothing had been taken of any block.
TEST(Feedback, a_step_that_is_skipped_loses_nothing) {
  for (const bool f16 : {false, true}) {
    for (const float momentum : {0.0f, 0.9f}) {
      const auto codec = codec_of({.ratio = 0.05, .f16_values = f16, .momentum = momentum});
      Feedback feedback{.residual = normal_values(2000, 1), .undoable = true};
      if (momentum != 0) feedback.momentum = normal_values(2000, 2);
      for (std::uint64_t step = 1; step <= 3; ++step) {
        Floats acc = feedback.residual, velocity = feedback.momentum;
        for (const std::size_t from : {0, 800, 1500}) {
          const std::size_t count = from == 800 ? 700 : from == 0 ? 800 : 500;
          const Floats gradient = normal_values(count, 10 * step + from);
          for (std::size_t i = 0; i < count; ++i) {
            float added = gradient[i];
            if (momentum != 0) {
              velocity[from + i] =
                  static_cast<float>(static_cast<double>(momentum) * velocity[from + i]) +
                  gradient[i];
              added = velocity[from + i];
            }
            acc[from + i] += added;
          }
          ASSERT_TRUE(encode(*codec, gradient, &feedback, from).ok());
        }
        EXPECT_NE(feedback.residual, acc);
        for (const Extent run : {Extent{0, 1}, Extent{1, 1000}, Extent{1001, 999}})
          restore(feedback, run);
        EXPECT_EQ(feedback.residual, acc);
        EXPECT_EQ(feedback.momentum, velocity);
        forget_sent_but(feedback, {});
      }
    }
  }
}

TEST(Feedback, what_is_final_is_not_taken_back) {
  const auto codec = codec_of({.ratio = 0.05});
  Feedback feedback{.residual = Floats(1000), .undoable = true};
  through(*codec, normal_values(1000, 1), &feedback);
  const Floats kept = feedback.residual;
  forget_sent_but(feedback, {});
  restore(feedback, all_of(feedback));
  EXPECT_EQ(feedback.residual, kept);
}

TEST(Feedback, nothing_is_remembered_unless_asked_for) {
  const auto codec = codec_of({.ratio = 0.05});
  Feedback feedback{.residual = Floats(1000)};
  through(*codec, normal_values(1000, 1), &feedback);
  EXPECT_TRUE(feedback.sent.empty());
  const Floats kept = feedback.residual;
  restore(feedback, all_of(feedback));
  EXPECT_EQ(feedback.residual, kept);
}

TEST(Feedback, what_several_encodings_have_sent_is_taken_back_together) {
  const auto codec = codec_of({.ratio = 0.05});
  Feedback feedback{.residual = Floats(1000), .undoable = true};
  Floats gradients(1000);
  for (std::uint64_t step = 1; step <= 3; ++step) {
    const Floats gradient = whole_numbers(1000, step, 100);
    add(gradients, gradient);
    through(*codec, gradient, &feedback);
    through(*codec, Floats(1000, kNan), &feedback);  // takes nothing
  }
  restore(feedback, all_of(feedback));
  EXPECT_EQ(feedback.residual, gradients);
}

TEST(Feedback, of_what_was_sent_a_part_may_be_final) {
  const auto codec = codec_of({.ratio = 0.2, .momentum = 0.5});
  Feedback feedback{
      .residual = normal_values(1000, 1), .momentum = normal_values(1000, 2), .undoable = true};
  for (const std::size_t from : {0, 600}) {
    ASSERT_TRUE(encode(*codec, normal_values(400, from), &feedback, from).ok());
  }
  const Feedback kept = feedback;
  Feedback all = feedback;
  restore(all, all_of(all));
  const std::vector<Extent> open = {{100, 150}, {390, 300}};
  forget_sent_but(feedback, open);
  restore(feedback, all_of(feedback));
  for (std::size_t i = 0; i < 1000; ++i) {
    const bool is_open = (i >= 100 && i < 250) || (i >= 390 && i < 690);
    const Feedback& expected = is_open ? all : kept;
    EXPECT_EQ(feedback.residual[i], expected.residual[i]) << i;
    EXPECT_EQ(feedback.momentum[i], expected.momentum[i]) << i;
  }
}

TEST(Feedback, what_is_remembered_is_bounded_however_often_it_is_encoded) {
  const auto codec = codec_of({.ratio = 0.1});
  Feedback feedback{.residual = Floats(1000), .undoable = true};
  Floats gradients(1000);
  for (std::uint64_t step = 1; step <= 500; ++step) {
    forget_sent_but(feedback, std::vector<Extent>{all_of(feedback)});
    const Floats gradient = whole_numbers(1000, step, 100);
    add(gradients, gradient);
    through(*codec, gradient, &feedback);
    std::size_t remembered = 0;
    for (const Feedback::Sent& sent : feedback.sent) remembered += sent.indices.size();
    ASSERT_LE(remembered, 1200U);
    ASSERT_LE(feedback.sent.size(), 20U);
  }
  restore(feedback, all_of(feedback));
  EXPECT_EQ(feedback.residual, gradients);
}

TEST(Feedback, is_rewound_to_the_bit_parameter_by_parameter) {
  for (const float momentum : {0.0f, 0.9f}) {
    const auto codec = codec_of({.ratio = 0.1, .f16_values = true, .momentum = momentum});
    Feedback feedback{.residual = normal_values(1000, 1), .begins = {0, 300, 700}};
    if (momentum != 0) feedback.momentum = normal_values(1000, 2);
    feedback.before = {
        .first = {1, 0, 1}, .residual = Floats(1000), .momentum = Floats(feedback.momentum.size())};
    const Feedback at_first = feedback;
    for (const std::size_t from : {0, 500}) {
      ASSERT_TRUE(encode(*codec, normal_values(500, 3 + from), &feedback, from).ok());
    }
    feedback.before.first = {0, 0, 0};
    for (const std::size_t from : {0, 500}) {
      ASSERT_TRUE(encode(*codec, normal_values(500, 9 + from), &feedback, from).ok());
    }
    const Feedback changed = feedback;
    rewind(feedback, {700, 300});
    rewind(feedback, {0, 299});
    for (std::size_t i = 0; i < 1000; ++i) {
      const Feedback& expected = i < 299 || i >= 700 ? at_first : changed;
      ASSERT_EQ(feedback.residual[i], expected.residual[i]) << i;
      if (momentum != 0) ASSERT_EQ(feedback.momentum[i], expected.momentum[i]) << i;
    }
    EXPECT_NE(changed.residual[299], at_first.residual[299]);
  }
}

TEST(Feedback, a_changed_scale_changes_all_that_is_kept) {
  const auto codec = codec_of({.ratio = 0.1, .momentum = 0.5});
  const auto step = [&](float scale) {
    Feedback feedback{.residual = normal_values(500, 1, scale),
                      .momentum = normal_values(500, 2, scale),
                      .undoable = true};
    through(*codec, normal_values(500, 3, scale), &feedback);
    return feedback;
  };
  Feedback scaled = step(1);
  ASSERT_TRUE(scale(scaled, 1024).ok());
  Feedback expected = step(1024);
  EXPECT_EQ(scaled.residual, expected.residual);
  EXPECT_EQ(scaled.momentum, expected.momentum);
  restore(scaled, all_of(scaled));
  restore(expected, all_of(expected));
  EXPECT_EQ(scaled.residual, expected.residual);
  EXPECT_EQ(scaled.momentum, expected.momentum);
}

TEST(Feedback, a_scale_that_cannot_be_is_refused_and_changes_nothing) {
  const Floats values = {1, -2e38f};
  Feedback feedback{.residual = values};
  for (const double factor : {0.0, -1.0, 1e-60, 1e60, HUGE_VAL, std::nan(""), 2.0}) {
    const Status status = scale(feedback, factor);
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << factor;
    EXPECT_EQ(feedback.residual, values);
  }
  EXPECT_TRUE(scale(feedback, 0.5).ok());
  EXPECT_EQ(feedback.residual, (Floats{0.5f, -1e38f}));
  Feedback fast{.residual = {1, 1}, .momentum = values};
  EXPECT_FALSE(scale(fast, 2.0).ok());
  Feedback sent{.residual = {0, 1}, .sent = {{.indices = {0}, .values = {2e38f}}}};
  EXPECT_FALSE(scale(sent, 2.0).ok());
  EXPECT_EQ(sent.residual, (Floats{0, 1}));
  Feedback nothing;
  EXPECT_TRUE(scale(nothing, 2).ok());
}

TEST(Feedback, its_sum_and_norm_are_those_of_the_residual) {
  EXPECT_EQ(residual_sum({}), 0);
  EXPECT_EQ(residual_norm({}), 0);
  const Feedback feedback{.residual = {3, -4, 0}, .momentum = {100, 100, 100}};
  EXPECT_EQ(residual_sum(feedback), -1);
  EXPECT_EQ(residual_norm(feedback), 5);
  EXPECT_NEAR(residual_norm({.residual = Floats(10'000, 1e30f)}), 1e32, 1e26);
}

#if defined(__x86_64__)
// Any thread drives an engine, also one on which the user has set flush-to-zero.
TEST(Feedback, a_thread_that_flushes_denormals_comes_to_the_same) {
  const Feedback before{.residual = normal_values(500, 1, 1e-41f),
                        .momentum = normal_values(500, 2, 1e-41f),
                        .undoable = true};
  const Floats gradient = normal_values(500, 3, 1e-41f);
  const auto work = [&] {
    const auto codec = codec_of({.ratio = 0.1, .f16_values = true, .momentum = 0.9});
    Feedback feedback = before;
    through(*codec, gradient, &feedback);
    const Floats kept = feedback.residual;
    EXPECT_TRUE(scale(feedback, 3).ok());
    const double sum = residual_sum(feedback), norm = residual_norm(feedback);
    restore(feedback, all_of(feedback));
    return std::tuple(bits_of(kept), bits_of(feedback.residual), bits_of(feedback.momentum), sum,
                      norm);
  };
  const auto expected = work();
  const unsigned mode = _mm_getcsr();
  _mm_setcsr(mode | 0x8040);  // flush to zero, denormals are zero
  const auto flushed = work();
  _mm_setcsr(mode);
  EXPECT_EQ(flushed, expected);
}
#endif

}  // namespace
}  // namespace taco::pg
