// Choosing while a model trains, with steps that take as long as a test says.
#include "pg/lightcc/automatic.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace taco::pg::lightcc {
namespace {

constexpr Way kE = Way::kExact, kH = Way::kHalf, kT = Way::kTopK;

// A model of equal buckets whose communication takes what `exact` says; half of it in 16 bits, and
// little by TopK. Predicted so, and really as the factors say.
struct Training {
  std::size_t buckets = 4;
  double compute = 1, backward = 0.5;  // the part of the computation in which buckets become ready
  double exact = 0.5;                  // seconds of a bucket's time on the cable
  double slower = 1;                   // the network, than predicted
  double top_k_slower = 1;             // TopK's work for processors
  double top_k_drag = 0;               // by how much it makes the computation longer
  double time = 100;
  std::optional<std::vector<double>> open;  // a question
  int steps = 0, questions = 0;
  std::set<Ways> used;
  std::vector<Decision> decisions;

  Cost cost(Way way, double network, double processor) const {
    const double share = way == kE ? 1 : way == kH ? 0.5 : 0.01;
    const double wire = exact * share * network, work = way == kT ? 0.05 * processor : 0.01;
    return {.seconds = std::max(wire, work), .processor = work, .wire = wire};
  }
  Automatic::CostOf predicted() {
    return [this](std::uint64_t, Way way) { return cost(way, 1, 1); };
  }
  StepModel truth(const Ways& ways) const {
    StepModel step;
    step.compute = compute;
    for (const Way way : ways)
      if (way == kT) step.compute += top_k_drag;
    for (std::size_t i = 0; i < buckets; ++i) {
      ReadyBucket one{.bytes = 1 << 20, .ready = 0, .costs = {}};
      one.ready = step.compute * (1 - backward * static_cast<double>(buckets - 1 - i) /
                                          static_cast<double>(buckets));
      for (const Way way : {kE, kH, kT}) {
        one.costs[static_cast<std::size_t>(way)] = cost(way, slower, way == kT ? top_k_slower : 1);
      }
      step.buckets.push_back(one);
    }
    return step;
  }
  Ways ways(const Automatic& automatic) const {
    Ways all(buckets, kE);
    for (const auto& [index, way] : automatic.ways()) all[index] = way;
    return all;
  }
  double step_seconds(const Automatic& automatic) const {
    return seconds(truth(ways(automatic)), ways(automatic));
  }
  // As the hook does it: an answer comes one step after its question.
  void run(Automatic& automatic, int count) {
    for (int i = 0; i < count; ++i, ++steps) {
      const Ways now = ways(automatic);
      used.insert(now);
      const StepModel step = truth(now);
      const std::vector<double> over = ends(step, now);
      std::vector<Averaged> averaged;
      for (std::size_t b = 0; b < buckets; ++b) {
        averaged.push_back(
            {b, step.buckets[b].bytes, time + step.buckets[b].ready, time + over[b]});
      }
      time += *std::max_element(over.begin(), over.end());
      automatic.step_done(averaged);
      if (open) {
        if (auto decision = automatic.answer(*open)) decisions.push_back(*decision);
      }
      open = automatic.question();
      questions += open ? 1 : 0;
    }
  }
};

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

TEST(Automatic, agrees_at_growing_intervals) {
  Training training{.exact = 0.009};
  Automatic automatic(training.predicted());
  training.run(automatic, 10'000);
  EXPECT_GE(training.questions, 10);
  EXPECT_LE(training.questions, 20);
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
  training.run(automatic, 30);
  EXPECT_EQ(training.ways(automatic), Ways(4, kE));
  training.slower = 50;
  training.run(automatic, 100);
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
  training.run(automatic, 4);
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
