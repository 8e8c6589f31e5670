#include "pg/lightcc/gradients.h"

#include <gtest/gtest.h>

#include <numeric>

#include "support/coded_blocks.h"

namespace taco::pg::lightcc {
namespace {

using Values = std::vector<float>;

// Two ranks, each on a host of its own with another rank of two: each sends one half.
Gradients::PartOf half(int rank) {
  return [rank](std::uint64_t elements) {
    return rank == 0 ? Part{0, elements / 2} : Part{elements / 2, elements - elements / 2};
  };
}

Settings top_k() {
  Settings settings;
  settings.compression = Compression::kTopK;
  settings.threshold = 0;
  settings.ratio = 0.5;
  return settings;
}

std::vector<Parameter> abc() { return {{"a", 3}, {"b", 4}, {"c", 1}}; }

Gradients gradients_of(int rank, const Settings& settings = top_k()) {
  return {abc(), settings, rank, 2, half(rank)};
}

constexpr std::size_t kBucket = 0;
const Layout kAbc = {0, 1, 2}, kCba = {2, 1, 0};

Gradients::Plan step(Gradients& gradients, const Layout& layout, Values& gradient) {
  EXPECT_TRUE(gradients.begin_step(1, false).ok());
  Result<Gradients::Plan> plan = gradients.plan(kBucket, layout, gradient);
  EXPECT_TRUE(plan.ok()) << plan.status().message();
  return *plan;
}

Gradients::Plan step(Gradients& gradients, const Layout& layout = kAbc) {
  Values gradient(8, 1);
  return step(gradients, layout, gradient);
}

// As the codec would leave it.
void leave(const Gradients::Plan& plan, float first) {
  ASSERT_NE(plan.feedback, nullptr);
  std::iota(plan.feedback->residual.begin(), plan.feedback->residual.end(), first);
}

TEST(Gradients, a_bucket_is_compressed_once_it_looks_as_the_step_before) {
  Gradients gradients = gradients_of(0);
  EXPECT_EQ(step(gradients).codec, nullptr);
  EXPECT_NE(step(gradients).codec, nullptr);
  EXPECT_EQ(step(gradients, kCba).codec, nullptr);
  EXPECT_NE(step(gradients, kCba).codec, nullptr);
}

TEST(Gradients, sixteen_bits_need_no_history) {
  Settings settings;
  settings.compression = Compression::kFloat16;
  Gradients gradients = gradients_of(0, settings);
  const Gradients::Plan plan = step(gradients);
  EXPECT_NE(plan.codec, nullptr);
  EXPECT_EQ(plan.feedback, nullptr);
}

TEST(Gradients, a_residual_covers_the_shard_and_knows_where_parameters_begin) {
  Gradients gradients = gradients_of(1);
  step(gradients);
  const Gradients::Plan plan = step(gradients);
  EXPECT_EQ(plan.feedback->residual, Values(4));
  EXPECT_EQ(plan.feedback->begins, (std::vector<std::uint64_t>{0, 3}));  // b's last three, and c
  EXPECT_TRUE(plan.feedback->momentum.empty());
}

TEST(Gradients, momentum_is_kept_where_it_is_asked_for) {
  Settings settings = top_k();
  settings.momentum = 0.9;
  Gradients gradients = gradients_of(0, settings);
  step(gradients);
  EXPECT_EQ(step(gradients).feedback->momentum.size(), 4U);
}

TEST(Gradients, what_is_owed_is_told_by_parameter) {
  Gradients gradients = gradients_of(1);
  step(gradients);
  leave(step(gradients), 10);
  EXPECT_EQ(gradients.owed(0, 3), (Values{0, 0, 0, 0, 10, 11, 12, 13}));
  EXPECT_EQ(gradients.owed(1, 2), (Values{0, 10, 11, 12}));
  gradients.forget(1, 2);
  EXPECT_EQ(gradients.owed(0, 3), (Values{0, 0, 0, 0, 0, 0, 0, 13}));
}

TEST(Gradients, another_layout_sends_what_is_owed_with_the_next_gradient) {
  Gradients gradients = gradients_of(0);
  step(gradients);
  leave(step(gradients), 1);  // a: 1 2 3; b: 4
  Values gradient = {1, 1, 1, 1, 1, 1, 1, 1};
  EXPECT_EQ(step(gradients, kCba, gradient).codec, nullptr);
  EXPECT_EQ(gradient, (Values{1, 5, 1, 1, 1, 2, 3, 4}));  // c, b, a
  EXPECT_EQ(gradients.owed(0, 3), Values(8));
}

TEST(Gradients, another_layout_holds_back_what_an_unused_parameter_is_owed) {
  Gradients gradients = gradients_of(0);
  step(gradients);
  leave(step(gradients), 1);
  Values gradient = {1, 0, 0, 0, 0, 1, 1, 1};  // b unused
  step(gradients, kCba, gradient);
  EXPECT_EQ(gradient, (Values{1, 0, 0, 0, 0, 2, 3, 4}));
  EXPECT_EQ(gradients.owed(1, 2), (Values{4, 0, 0, 0}));
  Values next(8, 1);
  EXPECT_NE(step(gradients, kCba, next).codec, nullptr);
  EXPECT_EQ(next, (Values{1, 5, 1, 1, 1, 1, 1, 1}));
}

// As under FSDP2: which parameters have gradients may change from step to step.
Gradients::Plan step_at_once(Gradients& gradients, const Layout& layout, Values& gradient) {
  EXPECT_TRUE(gradients.begin_step(1, false).ok());
  Result<Gradients::Plan> plan = gradients.plan(kBucket, layout, gradient, true);
  EXPECT_TRUE(plan.ok()) << plan.status().message();
  return *plan;
}

TEST(Gradients, a_layout_that_is_settled_is_compressed_at_once_with_what_was_owed) {
  Gradients gradients = gradients_of(0);
  Values all(8, 1);
  const Gradients::Plan first = step_at_once(gradients, kAbc, all);
  ASSERT_NE(first.codec, nullptr);
  leave(first, 1);  // a: 1 2 3; b: 4
  Values without_b(4, 1);
  const Gradients::Plan second = step_at_once(gradients, {0, 2}, without_b);
  ASSERT_NE(second.codec, nullptr);
  EXPECT_EQ(without_b, (Values{2, 3, 4, 1})) << "a's goes on, as part of the gradient";
  EXPECT_EQ(second.feedback->residual, Values(2));
  EXPECT_EQ(gradients.owed(1, 2), (Values{4, 0, 0, 0})) << "b's waits for a gradient of b";
  leave(second, 5);  // a: 5 6
  Values again(8, 1);
  EXPECT_NE(step_at_once(gradients, kAbc, again).codec, nullptr);
  EXPECT_EQ(again, (Values{6, 7, 1, 5, 1, 1, 1, 1}));
  EXPECT_EQ(gradients.owed(0, 3), Values(8));
}

TEST(Gradients, a_new_layout_travels_whole_where_its_step_may_be_skipped) {
  Gradients gradients = gradients_of(0);
  gradients.expect_skips(true);
  Values gradient(8, 1);
  EXPECT_EQ(step_at_once(gradients, kAbc, gradient).codec, nullptr);
  EXPECT_NE(step_at_once(gradients, kAbc, gradient).codec, nullptr);
}

TEST(Gradients, other_settings_send_what_is_owed) {
  Gradients gradients = gradients_of(0);
  step(gradients);
  leave(step(gradients), 1);
  Settings exact;
  gradients.change(exact);
  Values gradient(8, 1);
  EXPECT_EQ(step(gradients, kAbc, gradient).codec, nullptr);
  EXPECT_EQ(gradient, (Values{2, 3, 4, 5, 1, 1, 1, 1}));
}

TEST(Gradients, another_world_keeps_what_is_owed_in_units_of_the_average) {
  Gradients gradients = gradients_of(0);
  step(gradients);
  leave(step(gradients), 1);
  gradients.move(0, 4, half(0));
  EXPECT_EQ(gradients.owed(0, 1), (Values{2, 4, 6}));
}

TEST(Gradients, another_loss_scale_rescales_what_is_owed) {
  Gradients gradients = gradients_of(0);
  step(gradients);
  leave(step(gradients), 1);
  const double norm = gradients.norm();
  ASSERT_TRUE(gradients.begin_step(8, false).ok());
  EXPECT_EQ(gradients.owed(0, 1), (Values{8, 16, 24}));
  EXPECT_DOUBLE_EQ(gradients.norm(), norm);
  EXPECT_EQ(gradients.begin_step(0, false).code(), Code::kInvalidArgument);
}

TEST(Gradients, what_a_bucket_owes_that_is_no_more_goes_out_with_those_that_are) {
  Gradients gradients = gradients_of(0);
  Values ab(7, 1), c(1, 1);
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(gradients.begin_step(1, false).ok());
    ASSERT_TRUE(gradients.plan(0, {2}, c).ok());
    const Gradients::Plan plan = *gradients.plan(1, {0, 1}, ab);
    if (plan.feedback) leave(plan, 1);  // a: 1 2 3
  }
  Values gradient(8, 1);
  EXPECT_EQ(step(gradients, kAbc, gradient).codec, nullptr);
  EXPECT_EQ(gradient, (Values{2, 3, 4, 1, 1, 1, 1, 1}));
  EXPECT_EQ(gradients.owed(0, 3), Values(8));
}

TEST(Gradients, a_skipped_step_takes_pending_residuals_back) {
  Gradients gradients = gradients_of(0);
  gradients.expect_skips(true);
  step(gradients);
  leave(step(gradients), 1);
  step(gradients, kCba);
  EXPECT_EQ(gradients.owed(0, 3), Values(8));
  ASSERT_TRUE(gradients.begin_step(1, true).ok());
  EXPECT_EQ(gradients.owed(0, 3), (Values{1, 2, 3, 4, 0, 0, 0, 0}));
}

// As an operation would: what its receivers add up; the residual keeps the rest.
Values encode(const Gradients::Plan& plan, const Values& gradient) {
  return testing::through(*plan.codec, gradient, plan.feedback.get());
}

TEST(Gradients, a_skipped_step_takes_back_what_the_codec_has_sent) {
  Gradients gradients = gradients_of(0);
  gradients.expect_skips(true);
  step(gradients);
  const Gradients::Plan plan = step(gradients);
  ASSERT_TRUE(plan.feedback->undoable);
  const Values gradient = {1, 5, 2, 7};
  EXPECT_EQ(encode(plan, gradient), (Values{0, 5, 0, 7}));
  EXPECT_EQ(plan.feedback->residual, (Values{1, 0, 2, 0}));
  ASSERT_TRUE(gradients.begin_step(1, true).ok());
  EXPECT_EQ(plan.feedback->residual, gradient);
}

TEST(Gradients, what_a_skipped_step_gave_back_travels_whole_until_a_step_counts) {
  Gradients gradients = gradients_of(0);
  gradients.expect_skips(true);
  step(gradients);
  leave(step(gradients), 1);  // b: 4
  step(gradients, kCba);
  for (int skips = 0; skips < 2; ++skips) {
    ASSERT_TRUE(gradients.begin_step(1, true).ok());
    EXPECT_EQ(gradients.owed(1, 2)[0], 4);
    Values gradient(8, 1);
    const Gradients::Plan plan = *gradients.plan(kBucket, kCba, gradient);
    if (plan.codec) encode(plan, {gradient.begin(), gradient.begin() + 4});
    EXPECT_EQ(plan.codec, nullptr);
    EXPECT_EQ(gradient[1], 5);
    EXPECT_EQ(gradients.owed(1, 2)[0], 0);
  }
  EXPECT_NE(step(gradients, kCba).codec, nullptr);
  EXPECT_EQ(gradients.owed(0, 3), Values(8)) << "the last one counted";
}

const Values kWithoutB = {1, 0, 0, 0, 0, 1, 1, 1};  // of kCba

// 4 of it, since in the newest step, of another layout, b had no gradient.
void leave_some_of_b_pending(Gradients& gradients) {
  step(gradients);
  leave(step(gradients), 1);
  Values gradient = kWithoutB;
  step(gradients, kCba, gradient);
}

TEST(Gradients, what_is_pending_does_not_travel_in_a_part_that_may_be_taken_back) {
  Gradients gradients = gradients_of(0);
  gradients.expect_skips(true);
  leave_some_of_b_pending(gradients);
  Values gradient(8, 1);
  const Gradients::Plan coded = step(gradients, kCba, gradient);
  ASSERT_NE(coded.codec, nullptr);
  EXPECT_EQ(gradient, Values(8, 1)) << "b's waits for a step that travels whole";
  encode(coded, {gradient.begin(), gradient.begin() + 4});
  ASSERT_TRUE(gradients.begin_step(1, true).ok());
  EXPECT_EQ(gradients.owed(1, 2)[0], 5) << "b's, and once the gradient that the codec took back";
}

TEST(Gradients, what_waits_for_a_whole_step_finds_one) {
  Gradients gradients = gradients_of(0);
  gradients.expect_skips(true);
  leave_some_of_b_pending(gradients);
  int whole = 0;
  for (int i = 1; i <= 100; ++i) {
    Values gradient(8, 1);
    if (step(gradients, kCba, gradient).codec == nullptr) ++whole;
    EXPECT_EQ(gradient[1], i == 16 ? 5 : 1) << i;
  }
  EXPECT_EQ(whole, 3) << "and fewer and fewer of them";
}

TEST(Gradients, whoever_saves_need_not_wait_for_the_next_step_to_know_that_one_was_skipped) {
  Gradients gradients = gradients_of(0);
  gradients.expect_skips(true);
  step(gradients);
  encode(step(gradients), {1, 5, 2, 7});
  EXPECT_EQ(gradients.owed(0, 2), (Values{1, 0, 2, 0, 0, 0, 0}));
  gradients.end_step(true);
  EXPECT_EQ(gradients.owed(0, 2), (Values{1, 5, 2, 7, 0, 0, 0}));
  ASSERT_TRUE(gradients.begin_step(1, false).ok());
  EXPECT_EQ(gradients.owed(0, 2), (Values{1, 5, 2, 7, 0, 0, 0})) << "it is known already";
}

TEST(Gradients, what_was_flushed_into_a_skipped_step_is_owed_again) {
  for (const bool known : {false, true}) {
    Gradients gradients = gradients_of(0);
    gradients.expect_skips(true);
    step(gradients);
    leave(step(gradients), 1);
    if (known) gradients.end_step(true);
    gradients.forget(0, 3);
    ASSERT_TRUE(gradients.begin_step(1, !known).ok());
    EXPECT_EQ(gradients.owed(0, 3), (Values{1, 2, 3, 4, 0, 0, 0, 0}));
  }
}

TEST(Gradients, settings_may_change_before_it_is_known_that_a_step_was_skipped) {
  Gradients gradients = gradients_of(0);
  gradients.expect_skips(true);
  step(gradients);
  encode(step(gradients), {1, 5, 2, 7});
  gradients.change({});
  ASSERT_TRUE(gradients.begin_step(1, true).ok());
  EXPECT_EQ(gradients.owed(0, 2), (Values{1, 5, 2, 7, 0, 0, 0}));
}

// -- checkpoints

TEST(Gradients, a_bucket_that_looks_as_saved_goes_on_exactly_and_at_once) {
  Gradients before = gradients_of(1), after = gradients_of(1);
  step(before);
  leave(step(before), 0.1F);
  ASSERT_TRUE(after.load(before.save(), before.step()).ok());
  ASSERT_TRUE(after.add_average(1, Values{9, 9, 9, 9}).ok());  // what the sums say, too
  Values gradient(8, 1);
  const Gradients::Plan plan = step(after, kAbc, gradient);
  ASSERT_NE(plan.codec, nullptr);
  EXPECT_EQ(plan.feedback->residual, before.save()[0].residual);
  EXPECT_EQ(gradient, Values(8, 1));
  EXPECT_EQ(after.step(), before.step() + 1);
}

TEST(Gradients, a_bucket_that_looks_otherwise_sends_the_sums) {
  Gradients before = gradients_of(0), after = gradients_of(0);
  step(before);
  leave(step(before), 1);
  ASSERT_TRUE(after.load(before.save(), before.step()).ok());
  ASSERT_TRUE(after.add_average(1, Values{1, 2, 3, 4}).ok());
  Values gradient(8, 1);
  EXPECT_EQ(step(after, kCba, gradient).codec, nullptr);
  EXPECT_EQ(gradient, (Values{1, 3, 5, 1, 1, 1, 1, 1}));  // rank 0's half of b, of a world of 2
  EXPECT_EQ(step(after, kAbc).codec, nullptr);            // what was saved has been sent
}

TEST(Gradients, what_was_loaded_and_not_used_is_saved_again) {
  Gradients before = gradients_of(0), between = gradients_of(0);
  step(before);
  leave(step(before), 1);
  ASSERT_TRUE(between.load(before.save(), 1).ok());
  ASSERT_EQ(between.save().size(), 1U);
  EXPECT_EQ(between.save()[0].residual, before.save()[0].residual);
}

TEST(Gradients, what_was_pending_beside_a_bucket_is_saved_with_it) {
  Gradients before = gradients_of(0), after = gradients_of(0);
  leave_some_of_b_pending(before);
  Values without_b = kWithoutB;
  leave(step(before, kCba, without_b), 10);
  EXPECT_EQ(before.owed(0, 3), (Values{0, 0, 0, 15, 12, 13, 0, 10}));
  ASSERT_TRUE(after.load(before.save(), before.step()).ok());
  ASSERT_TRUE(after.add_average(1, Values{9, 9, 9, 9}).ok());  // what the sums say, too
  Values gradient = without_b;
  EXPECT_NE(step(after, kCba, gradient).codec, nullptr);
  EXPECT_EQ(after.owed(0, 3), before.owed(0, 3));
}

TEST(Gradients, every_world_shares_out_all_of_a_sum) {
  for (int world = 1; world <= 5; ++world) {
    Values sum(4);
    for (int rank = 0; rank < world; ++rank) {
      Gradients gradients(abc(), top_k(), rank, world, half(0));
      ASSERT_TRUE(gradients.begin_step(2, false).ok());
      ASSERT_TRUE(gradients.load({}, 0).ok());
      ASSERT_TRUE(gradients.add_average(1, Values{1, 2, 3, 4}).ok());
      const Values mine = gradients.owed(1, 2);
      for (int i = 0; i < 4; ++i) sum[i] += mine[i];
    }
    const auto factor = static_cast<float>(2 * world);  // scale 2
    EXPECT_EQ(sum, (Values{factor, 2 * factor, 3 * factor, 4 * factor}));
  }
}

TEST(Gradients, saved_at_one_loss_scale_and_loaded_at_another) {
  Gradients before = gradients_of(0), after = gradients_of(0);
  step(before);
  leave(step(before), 1);
  ASSERT_TRUE(before.begin_step(4, false).ok());
  ASSERT_TRUE(after.begin_step(2, false).ok());
  ASSERT_TRUE(after.load(before.save(), 7).ok());
  ASSERT_TRUE(after.begin_step(2, false).ok());
  Values gradient(8, 1);
  EXPECT_EQ(after.plan(kBucket, kAbc, gradient)->feedback->residual, (Values{2, 4, 6, 8}));
}

TEST(Gradients, residuals_that_do_not_fit_are_refused) {
  Gradients gradients = gradients_of(0);
  EXPECT_EQ(gradients.load({{{0, 7}, {0, 1}, {1}, {}}}, 0).code(), Code::kInvalidArgument);
  EXPECT_EQ(gradients.load({{{0}, {0, 2}, {1}, {}}}, 0).code(), Code::kInvalidArgument);
  EXPECT_EQ(gradients.load({{{0}, {2, 2}, {1, 1}, {}}}, 0).code(), Code::kInvalidArgument);
  const Status status = gradients.add_average(1, Values{1});
  EXPECT_NE(status.message().find("the residual of b has 1 elements"), std::string::npos);
}

}  // namespace
}  // namespace taco::pg::lightcc
