// Choosing while a model trains, with steps that take as long as a test says.
#include "pg/lightcc/automatic.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "support/automatic_training.h"

namespace taco::pg::lightcc {
namespace {

constexpr Way kE = Way::kExact, kH = Way::kHalf, kT = Way::kTopK;

using Training = testing::AutomaticTraining;

TEST(Automatic, the_first_steps_are_exact_and_then_it_chooses) {
  Training training;
  Automatic automatic(training.predicted());
  training.run(automatic, 4);
  EXPECT_EQ(training.used, (std::set<Ways>{Ways(4, kE)}));
  training.run(automatic, 20);
  EXPECT_LT(training.step_seconds(automatic), 1.1);
  ASSERT_FALSE(training.decisions.empty());
  EXPECT_TRUE(training.decisions.front().changed);
  EXPECT_NEAR(training.decisions.front().measured, 1.625, 0.01);
}

TEST(Automatic, what_the_computation_hides_is_never_compressed) {
  Training training{.exact = 0.009};
  Automatic automatic(training.predicted());
  training.run(automatic, 300);
  EXPECT_EQ(training.used, (std::set<Ways>{Ways(4, kE)}));
}

TEST(Automatic, agrees_every_few_steps) {
  Training training{.exact = 0.009};
  Automatic automatic(training.predicted());
  training.run(automatic, 1200);
  EXPECT_GE(training.questions, 90);
  EXPECT_LE(training.questions, 110);
}

TEST(Automatic, notices_a_network_slower_than_its_interfaces_say) {
  // Predicted to hide altogether.
  Training training{.exact = 0.02, .slower = 30};
  Automatic automatic(training.predicted());
  training.run(automatic, 60);
  EXPECT_LT(training.step_seconds(automatic), 1.15);
  EXPECT_NEAR(training.decisions.front().cable, 30, 3);
}

TEST(Automatic, notices_when_the_network_becomes_slower) {
  Training training{.exact = 0.009};
  Automatic automatic(training.predicted());
  training.run(automatic, 1000);
  EXPECT_EQ(training.ways(automatic), Ways(4, kE));
  training.slower = 50;
  training.run(automatic, 30);
  EXPECT_LT(training.step_seconds(automatic), 1.15);
}

TEST(Automatic, a_way_that_costs_more_than_predicted_is_given_up) {
  Training training{.top_k_slower = 30};  // 1.5 seconds a bucket
  Automatic automatic(training.predicted());
  training.run(automatic, 200);
  const StepModel truth = training.truth(Ways(4, kE));
  double best = 1e9;
  for (const Way way : {kE, kH, kT}) best = std::min(best, seconds(truth, all_by(truth, way)));
  EXPECT_LT(training.step_seconds(automatic), 1.03 * best);
  EXPECT_TRUE(std::any_of(training.decisions.begin(), training.decisions.end(),
                          [](const Decision& one) { return one.taken_back; }));
}

// A slower computation shows in no time of a bucket.
TEST(Automatic, a_change_after_which_steps_are_no_faster_is_taken_back) {
  Training training{.exact = 0.3, .top_k_drag = 5};
  Automatic automatic(training.predicted());
  training.run(automatic, 8);
  EXPECT_NE(training.ways(automatic), Ways(4, kE)) << "tried";
  training.run(automatic, 3);
  EXPECT_NE(training.ways(automatic), Ways(4, kE)) << "three steps are too few to tell";
  training.run(automatic, 10);
  EXPECT_EQ(training.ways(automatic), Ways(4, kE)) << "and taken back";
  EXPECT_TRUE(training.decisions.back().taken_back || training.decisions.back().changed);
}

TEST(Automatic, other_buckets_begin_anew_with_exact_gradients) {
  Training training;
  Automatic automatic(training.predicted());
  training.run(automatic, 20);
  EXPECT_NE(training.ways(automatic), Ways(4, kE));
  training.buckets = 5;
  training.run(automatic, 1);
  EXPECT_EQ(training.ways(automatic), Ways(5, kE));
  training.run(automatic, 20);
  EXPECT_NE(training.ways(automatic), Ways(5, kE));
}

TEST(Automatic, an_answer_about_other_buckets_decides_nothing) {
  Training training;
  Automatic automatic(training.predicted());
  const auto step = [&](std::uint64_t bytes) {
    training.time += 2;
    automatic.step_done({{0, bytes, training.time - 1, training.time}});
  };
  for (int i = 0; i < 4; ++i) step(4000);
  const auto question = automatic.question();
  ASSERT_TRUE(question);
  EXPECT_FALSE(automatic.question()) << "one at a time";
  step(8000);
  EXPECT_FALSE(automatic.answer(*question));
  EXPECT_FALSE(automatic.answer(*question)) << "nobody asked";
}

TEST(Automatic, one_slow_step_is_no_reason) {
  Training training{.exact = 0.009};
  Automatic automatic(training.predicted());
  training.run(automatic, 2);
  training.slower = 100;
  training.run(automatic, 1);
  training.slower = 1;
  training.run(automatic, 50);
  EXPECT_EQ(training.used, (std::set<Ways>{Ways(4, kE)}));
}

TEST(Automatic, a_decision_is_told_in_numbers) {
  Training training;
  Automatic automatic(training.predicted());
  training.run(automatic, 6);
  ASSERT_FALSE(training.decisions.empty());
  const std::string text = describe(training.decisions.front(), {"float32", "float16", "TopK 1%"});
  for (const char* part : {"float32 1625.0 ms", "measured so far 1625.0 ms", "should expose",
                           "1000.0 ms of computation", "1 bucket (1.0 MB) as float16"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << ": " << text;
  }
}

}  // namespace
}  // namespace taco::pg::lightcc
