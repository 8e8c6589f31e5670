#include "pg/lightcc/gradients.h"

#include <gtest/gtest.h>

#include <array>
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

Gradients::Plan step(Gradients& gradients, const Pass& pass) {
  gradients.begin_step();
  Result<Gradients::Plan> plan = gradients.plan(pass);
  EXPECT_TRUE(plan.ok()) << plan.status().message();
  return *plan;
}

Gradients::Plan step(Gradients& gradients, const Layout& layout, Values& gradient) {
  return step(gradients, {.index = kBucket, .layout = layout, .gradient = gradient});
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

// A pass of kCba that has not used b.
Pass without_b(Values& gradient) {
  static const std::vector<std::uint8_t> used = {1, 0, 1};
  return {.index = kBucket, .layout = kCba, .gradient = gradient, .used = used};
}

TEST(Gradients, another_layout_holds_back_what_an_unused_parameter_is_owed) {
  Gradients gradients = gradients_of(0);
  step(gradients);
  leave(step(gradients), 1);
  Values gradient = {1, 0, 0, 0, 0, 1, 1, 1};
  step(gradients, without_b(gradient));
  EXPECT_EQ(gradient, (Values{1, 0, 0, 0, 0, 2, 3, 4}));
  EXPECT_EQ(gradients.owed(1, 2), (Values{4, 0, 0, 0}));
  Values next(8, 1);
  EXPECT_NE(step(gradients, kCba, next).codec, nullptr);
  EXPECT_EQ(next, (Values{1, 5, 1, 1, 1, 1, 1, 1}));
}

// As under FSDP2: which parameters have gradients may change from step to step.
Gradients::Plan step_at_once(Gradients& gradients, const Layout& layout, Values& gradient) {
  return step(
      gradients,
      {.index = kBucket, .layout = layout, .gradient = gradient, .at_once = true, .adds = true});
}

TEST(Gradients, a_layout_that_is_fixed_is_compressed_at_once_with_what_was_owed) {
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
  ASSERT_TRUE(gradients.rescale(8).ok());
  EXPECT_EQ(gradients.owed(0, 1), (Values{8, 16, 24}));
  EXPECT_DOUBLE_EQ(gradients.norm(), norm);
  EXPECT_EQ(gradients.rescale(0).code(), Code::kInvalidArgument);
}

TEST(Gradients, a_loss_scale_that_turns_out_later_changes_nothing_but_the_unit) {
  Gradients gradients = gradients_of(0);
  step(gradients);
  leave(step(gradients), 8);
  gradients.assume_scale(8);
  EXPECT_EQ(gradients.owed(0, 1), (Values{8, 9, 10}));
  EXPECT_EQ(gradients.save()[0].residual[0], 1);
}

TEST(Gradients, what_a_bucket_owes_that_is_no_more_goes_out_with_those_that_are) {
  Gradients gradients = gradients_of(0);
  Values ab(7, 1), c(1, 1);
  for (int i = 0; i < 2; ++i) {
    gradients.begin_step();
    const Layout of_c = {2}, of_ab = {0, 1};
    ASSERT_TRUE(gradients.plan({.index = 0, .layout = of_c, .gradient = c}).ok());
    const Gradients::Plan plan = *gradients.plan({.index = 1, .layout = of_ab, .gradient = ab});
    if (plan.feedback) leave(plan, 1);  // a: 1 2 3
  }
  Values gradient(8, 1);
  EXPECT_EQ(step(gradients, kAbc, gradient).codec, nullptr);
  EXPECT_EQ(gradient, (Values{2, 3, 4, 1, 1, 1, 1, 1}));
  EXPECT_EQ(gradients.owed(0, 3), Values(8));
}

// -- what becomes of gradients

constexpr std::array kAll = {0, 1, 2};

struct Told : Gradients {
  Told() : Gradients(abc(), top_k(), 0, 2, half(0)) { tell_of(kAll); }
};

// As an operation would: what its receivers add up; the residual keeps the rest.
Values encode(const Gradients::Plan& plan, const Values& gradient) {
  return testing::through(*plan.codec, gradient, plan.feedback.get());
}

// Encodes the first half of the gradient: a, and one element of b.
Values pass(Gradients& gradients, const Values& part, bool adds = false) {
  Values gradient(8);
  std::copy(part.begin(), part.end(), gradient.begin());
  const Gradients::Plan plan =
      step(gradients, {.index = kBucket, .layout = kAbc, .gradient = gradient, .adds = adds});
  return plan.codec ? encode(plan, {gradient.begin(), gradient.begin() + 4}) : part;
}

Values owed(const Gradients& gradients, bool as_saved = false) {
  return gradients.owed(0, 2, as_saved);
}

TEST(Gradients, passes_of_which_nobody_tells_are_used) {
  Gradients gradients = gradients_of(0);
  pass(gradients, {1, 1, 1, 1});
  EXPECT_EQ(pass(gradients, {1, 5, 2, 7}), (Values{0, 5, 0, 7}));
  gradients.decide(kAll, Fate::kDropped);
  EXPECT_EQ(owed(gradients), (Values{1, 0, 2, 0, 0, 0, 0}));
}

TEST(Gradients, what_was_sent_is_owed_again_when_a_scaler_skips_and_gone_when_a_step_is_taken) {
  for (const Fate fate : {Fate::kUsed, Fate::kSkipped, Fate::kDropped}) {
    Told gradients;
    pass(gradients, {1, 1, 1, 1});
    pass(gradients, {1, 5, 2, 7});
    gradients.decide(kAll, Fate::kUsed);
    EXPECT_EQ(pass(gradients, {3, 3, 0, 1}), (Values{4, 3, 0, 0}));
    gradients.decide(kAll, fate);
    const Values expected = fate == Fate::kUsed      ? Values{0, 0, 2, 1, 0, 0, 0}
                            : fate == Fate::kSkipped ? Values{4, 3, 2, 1, 0, 0, 0}
                                                     : Values{1, 0, 2, 0, 0, 0, 0};
    EXPECT_EQ(owed(gradients), expected);
    gradients.decide(kAll, Fate::kDropped);
    EXPECT_EQ(owed(gradients), expected) << "it is decided already";
  }
}

TEST(Gradients, each_parameter_has_a_fate_of_its_own) {
  Told gradients;
  pass(gradients, {1, 1, 1, 1});
  pass(gradients, {1, 5, 2, 7});
  gradients.decide(std::array{0}, Fate::kSkipped);
  EXPECT_EQ(owed(gradients), (Values{1, 5, 2, 0, 0, 0, 0}));
  gradients.decide(std::array{1}, Fate::kDropped);
  EXPECT_EQ(owed(gradients), (Values{1, 5, 2, 0, 0, 0, 0}));
}

TEST(Gradients, results_that_are_added_up_are_taken_back_together) {
  for (const Fate fate : {Fate::kUsed, Fate::kSkipped, Fate::kDropped}) {
    Told gradients;
    pass(gradients, {1, 1, 1, 1}, true);
    EXPECT_EQ(pass(gradients, {1, 5, 2, 7}, true), (Values{0, 5, 0, 7}));
    EXPECT_EQ(pass(gradients, {9, 0, 1, 1}, true), (Values{10, 0, 3, 0}));
    gradients.decide(kAll, fate);
    EXPECT_EQ(owed(gradients), fate == Fate::kUsed      ? (Values{0, 0, 0, 1, 0, 0, 0})
                               : fate == Fate::kSkipped ? (Values{10, 5, 3, 8, 0, 0, 0})
                                                        : Values(7));
  }
}

// The second one has in it what others have sent in the first one.
TEST(Gradients, results_that_replace_each_other_are_rewound) {
  Told gradients;
  pass(gradients, {1, 1, 1, 1});
  pass(gradients, {1, 5, 2, 7});
  pass(gradients, {0, 6, 0, 8});
  gradients.decide(kAll, Fate::kSkipped);
  EXPECT_EQ(owed(gradients), Values(7));
}

TEST(Gradients, what_is_not_decided_is_saved_as_if_it_were_dropped) {
  Told gradients, after;
  pass(gradients, {1, 1, 1, 1});
  pass(gradients, {1, 5, 2, 7});
  gradients.decide(kAll, Fate::kUsed);
  pass(gradients, {3, 3, 0, 1});
  EXPECT_EQ(owed(gradients, true), (Values{1, 0, 2, 0, 0, 0, 0}));
  ASSERT_TRUE(after.load(gradients.save(), gradients.step()).ok());
  EXPECT_EQ(pass(after, {0, 0, 0, 1}), (Values{0, 0, 0, 1})) << "a has no gradient";
  after.decide(kAll, Fate::kUsed);
  EXPECT_EQ(owed(after), (Values{1, 0, 2, 0, 0, 0, 0}));
}

TEST(Gradients, who_is_trained_later_than_others_inherits_nothing_from_before) {
  for (const bool others_are_trained : {false, true}) {
    Gradients gradients = gradients_of(0);
    if (others_are_trained) gradients.tell_of(std::array{1});
    pass(gradients, {1, 1, 1, 1});
    pass(gradients, {1, 5, 2, 7});
    gradients.decide(std::array{1}, Fate::kUsed);
    const Values before = owed(gradients);
    EXPECT_EQ(before, (Values{1, 0, 2, 0, 0, 0, 0}));
    gradients.forget_untrained(kAll);
    gradients.tell_of(kAll);
    EXPECT_EQ(owed(gradients), others_are_trained ? Values(7) : before);
  }
}

TEST(Gradients, who_was_dropped_is_known_until_the_next_pass_or_word) {
  Told gradients;
  pass(gradients, {1, 1, 1, 1});
  pass(gradients, {1, 5, 2, 7});
  gradients.decide(std::array{0}, Fate::kDropped);
  EXPECT_EQ(gradients.dropped(kAll), (std::vector<int>{0}));
  gradients.decide(kAll, Fate::kUsed);
  EXPECT_TRUE(gradients.dropped(kAll).empty());
  pass(gradients, {1, 1, 1, 1});
  gradients.decide(kAll, Fate::kDropped);
  Values gradient(8);
  const std::array<std::uint8_t, 3> unused = {};
  step(gradients, {.index = kBucket, .layout = kAbc, .gradient = gradient, .used = unused});
  EXPECT_TRUE(gradients.dropped(kAll).empty()) << "others may have used all of them";
}

TEST(Gradients, an_uneven_pass_travels_whole_and_all_that_is_owed_waits) {
  Told gradients;
  pass(gradients, {1, 1, 1, 1});
  leave(step(gradients), 1);  // a: 1 2 3; b: 4
  gradients.decide(kAll, Fate::kUsed);
  for (const Layout& layout : {kAbc, kCba}) {  // of which the second makes it pending
    Values gradient = {1, 5, 2, 7, 0, 0, 0, 0};
    const Values given = gradient;
    const Gradients::Plan plan =
        step(gradients, {.index = kBucket, .layout = layout, .gradient = gradient, .uneven = true});
    EXPECT_EQ(plan.codec, nullptr);
    EXPECT_EQ(gradient, given);
    gradients.decide(kAll, Fate::kDropped);
    EXPECT_EQ(owed(gradients), (Values{1, 2, 3, 4, 0, 0, 0}));
  }
}

TEST(Gradients, who_had_no_gradients_catches_up_on_what_others_have_decided) {
  Told with, without;
  for (Told* gradients : {&with, &without}) {
    pass(*gradients, {1, 1, 1, 1});
    pass(*gradients, {1, 5, 2, 7});
  }
  Values gradient(8);
  step(with, {.index = kBucket, .layout = kAbc, .gradient = gradient, .uneven = true});
  step(without, {.index = kBucket, .layout = kAbc, .gradient = gradient, .uneven = true});
  with.decide(kAll, Fate::kUsed);
  with.decide(kAll, Fate::kDropped);  // of nothing any more
  ASSERT_TRUE(with.rescale(2).ok());
  ASSERT_TRUE(without.catch_up(with.decided(), 2).ok());
  without.decide(kAll, Fate::kDropped);
  EXPECT_EQ(without.scale(), 2);
  EXPECT_EQ(owed(without), owed(with));
  EXPECT_EQ(owed(without, true), owed(with));
}

TEST(Gradients, what_was_pending_comes_back_and_its_pass_is_rewound) {
  for (const Fate fate : {Fate::kSkipped, Fate::kDropped}) {
    Told gradients;
    pass(gradients, {1, 1, 1, 1});
    leave(step(gradients), 1);  // a: 1 2 3; b: 4
    gradients.decide(kAll, Fate::kUsed);
    step(gradients, kCba);
    gradients.decide(kAll, fate);
    EXPECT_EQ(owed(gradients), (Values{1, 2, 3, 4, 0, 0, 0}));
    Values gradient(8, 1);
    const Gradients::Plan plan = step(gradients, kCba, gradient);
    ASSERT_NE(plan.codec, nullptr) << "it goes out with the next pass";
    EXPECT_EQ(gradient, (Values{1, 5, 1, 1, 1, 2, 3, 4}));
    encode(plan, {gradient.begin(), gradient.begin() + 4});
    gradients.decide(kAll, fate);
    EXPECT_EQ(owed(gradients), (Values{1, 2, 3, 4, 0, 0, 0}));
  }
}

TEST(Gradients, what_others_have_used_is_undecided_here_too) {
  Told gradients;
  pass(gradients, {1, 1, 1, 1});
  Values gradient = {1, 5, 2, 7, 0, 0, 0, 0};
  const std::vector<std::uint8_t> used = {0, 1, 1};
  const Gradients::Plan plan =
      step(gradients, {.index = kBucket, .layout = kAbc, .gradient = gradient, .used = used});
  encode(plan, {1, 5, 2, 7});  // a by another rank of this host
  gradients.used_elsewhere(0, {0, 10, 0});
  EXPECT_EQ(owed(gradients), (Values{1, 10, 2, 0, 0, 0, 0}));
  gradients.decide(kAll, Fate::kDropped);
  EXPECT_EQ(owed(gradients), Values(7));
}

TEST(Gradients, what_others_have_used_is_rewound_here_where_it_is_there) {
  for (const bool skipped : {false, true}) {
    Told gradients;
    pass(gradients, {1, 1, 1, 1});
    pass(gradients, {1, 5, 2, 7});
    gradients.decide(kAll, Fate::kUsed);
    const Values before = owed(gradients);
    if (skipped) gradients.used_in_part(0);  // another rank of this host may owe some of it
    Values gradient = {3, 0, 0, 1, 0, 0, 0, 0};
    const std::vector<std::uint8_t> used = {0, 1, 1};
    const Gradients::Plan plan =
        step(gradients, {.index = kBucket, .layout = kAbc, .gradient = gradient, .used = used});
    encode(plan, {3, 0, 0, 1});
    gradients.used_elsewhere(0, {});
    gradients.decide(kAll, Fate::kSkipped);
    EXPECT_EQ(owed(gradients)[0], before[0] + (skipped ? 0 : 3));
  }
}

TEST(Gradients, what_was_flushed_is_owed_again_unless_a_step_is_taken) {
  for (const Fate fate : {Fate::kUsed, Fate::kSkipped, Fate::kDropped}) {
    for (const bool decided : {false, true}) {
      Told gradients;
      pass(gradients, {1, 1, 1, 1});
      pass(gradients, {1, 5, 2, 7});
      gradients.decide(kAll, Fate::kUsed);
      pass(gradients, {3, 3, 0, 1});
      if (decided) gradients.decide(kAll, fate);
      const Values before = owed(gradients);
      gradients.forget(0, 3);
      EXPECT_EQ(owed(gradients), Values(7));
      gradients.decide(kAll, fate);
      const Values expected = fate == Fate::kUsed      ? Values(7)
                              : decided                ? before
                              : fate == Fate::kSkipped ? Values{4, 3, 2, 1, 0, 0, 0}
                                                       : Values{1, 0, 2, 0, 0, 0, 0};
      EXPECT_EQ(owed(gradients), expected);
    }
  }
}

TEST(Gradients, settings_may_change_before_it_is_decided) {
  for (const Fate fate : {Fate::kUsed, Fate::kSkipped, Fate::kDropped}) {
    Told gradients;
    pass(gradients, {1, 1, 1, 1});
    pass(gradients, {1, 5, 2, 7});
    gradients.decide(kAll, Fate::kUsed);
    pass(gradients, {3, 3, 0, 1});
    gradients.change({});
    EXPECT_EQ(owed(gradients, true), (Values{1, 0, 2, 0, 0, 0, 0}));
    gradients.decide(kAll, fate);
    EXPECT_EQ(owed(gradients), fate == Fate::kUsed      ? (Values{0, 0, 2, 1, 0, 0, 0})
                               : fate == Fate::kSkipped ? (Values{4, 3, 2, 1, 0, 0, 0})
                                                        : (Values{1, 0, 2, 0, 0, 0, 0}));
  }
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
  step(before);
  leave(step(before), 1);
  Values gradient = {1, 0, 0, 0, 0, 1, 1, 1};
  step(before, without_b(gradient));
  leave(step(before, without_b(gradient)), 10);
  EXPECT_EQ(before.owed(0, 3), (Values{0, 0, 0, 15, 12, 13, 0, 10}));
  ASSERT_TRUE(after.load(before.save(), before.step()).ok());
  ASSERT_TRUE(after.add_average(1, Values{9, 9, 9, 9}).ok());  // what the sums say, too
  EXPECT_NE(step(after, without_b(gradient)).codec, nullptr);
  EXPECT_EQ(after.owed(0, 3), before.owed(0, 3));
}

TEST(Gradients, every_world_shares_out_all_of_a_sum) {
  for (int world = 1; world <= 5; ++world) {
    Values sum(4);
    for (int rank = 0; rank < world; ++rank) {
      Gradients gradients(abc(), top_k(), rank, world, half(0));
      ASSERT_TRUE(gradients.rescale(2).ok());
      gradients.begin_step();
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
  ASSERT_TRUE(before.rescale(4).ok());
  before.begin_step();
  ASSERT_TRUE(after.rescale(2).ok());
  after.begin_step();
  ASSERT_TRUE(after.load(before.save(), 7).ok());
  ASSERT_TRUE(after.rescale(2).ok());
  after.begin_step();
  Values gradient(8, 1);
  EXPECT_EQ(
      after.plan({.index = kBucket, .layout = kAbc, .gradient = gradient})->feedback->residual,
      (Values{2, 4, 6, 8}));
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
