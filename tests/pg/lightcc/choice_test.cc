// The choice against all there is to choose from, and the model of a step against what can be
// reckoned by hand.
#include "pg/lightcc/choice.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace taco::pg::lightcc {
namespace {

// Nothing but the cable.
Cost wire(double seconds) { return {.seconds = seconds, .processor = 0, .wire = seconds}; }

ReadyBucket bucket(double ready, std::optional<Cost> exact, std::optional<Cost> half = {},
                   std::optional<Cost> top_k = {}) {
  return {.bytes = 1000, .ready = ready, .costs = {exact, half, top_k}};
}

constexpr Way kE = Way::kExact, kH = Way::kHalf, kT = Way::kTopK;

TEST(StepModel, what_is_ready_early_hides_behind_the_computation) {
  const StepModel step{.compute = 10,
                       .buckets = {bucket(2, wire(3)), bucket(4, wire(3)), bucket(10, wire(1))}};
  EXPECT_EQ(ends(step, {kE, kE, kE}), (std::vector<double>{5, 8, 11}));
  EXPECT_DOUBLE_EQ(seconds(step, {kE, kE, kE}), 11);
  EXPECT_DOUBLE_EQ(exposed(step, {kE, kE, kE}), 1);
}

TEST(StepModel, buckets_under_way_together_share_the_cable) {
  const StepModel step{.compute = 1, .buckets = {bucket(1, wire(3)), bucket(1, wire(3))}};
  EXPECT_DOUBLE_EQ(exposed(step, {kE, kE}), 6);
}

TEST(StepModel, one_bucket_is_coded_while_another_is_on_the_cable) {
  const Cost coding{.seconds = 4.5, .processor = 4, .wire = 0.5};
  const StepModel step{.compute = 0, .buckets = {bucket(0, wire(5)), bucket(0, coding)}};
  EXPECT_DOUBLE_EQ(seconds(step, {kE, kE}), 6);  // 5.5 of the cable, and the last one's half
}

TEST(StepModel, alone_a_bucket_takes_its_own_time) {
  const Cost cost{.seconds = 7, .processor = 4, .wire = 5};
  EXPECT_DOUBLE_EQ(exposed({.compute = 3, .buckets = {bucket(3, cost)}}, {kE}), 7);
}

TEST(Choice, hidden_communication_is_never_compressed) {
  const StepModel step{.compute = 100,
                       .buckets = {bucket(20, wire(30), wire(3), wire(0.3)),
                                   bucket(60, wire(30), wire(3), wire(0.3))}};
  EXPECT_EQ(choose(step, 0.01), (Ways{kE, kE}));
}

TEST(Choice, only_what_would_be_waited_for_is_compressed) {
  const StepModel step{.compute = 100,
                       .buckets = {bucket(20, wire(40), wire(20), wire(1)),
                                   bucket(90, wire(40), wire(20), wire(1))}};
  EXPECT_EQ(choose(step, 0.01), (Ways{kE, kT}));
}

TEST(Choice, of_equal_steps_the_one_that_gives_up_less) {
  const auto ready = bucket(1, wire(5), wire(5), wire(5));
  EXPECT_EQ(choose({.compute = 1, .buckets = {ready}}, 0.01), (Ways{kE}));
  const auto half_will_do = bucket(1, wire(9), wire(5), wire(4.99));
  EXPECT_EQ(choose({.compute = 1, .buckets = {half_will_do}}, 0.01), (Ways{kH}));
}

TEST(Choice, what_is_not_allowed_is_not_used) {
  const StepModel step{.compute = 1,
                       .buckets = {bucket(1, wire(50), {}, {}), bucket(1, wire(50), wire(25), {})}};
  EXPECT_EQ(choose(step, 0.01), (Ways{kE, kH}));
  EXPECT_EQ(all_by(step, kH), (Ways{kE, kH}));
  EXPECT_EQ(all_by(step, kT), (Ways{kE, kE}));
  EXPECT_TRUE(choose({}, 0.01).empty());
}

// Costs as of real buckets: the fewer bytes, the more work for processors.
StepModel drawn(std::mt19937_64& random, std::size_t buckets) {
  std::uniform_real_distribution<double> any(0, 1);
  StepModel step;
  step.compute = any(random) * 20;
  double ready = step.compute * any(random);
  for (std::size_t i = 0; i < buckets; ++i) {
    ready += (step.compute - ready) * any(random);
    const double size = 0.1 + any(random);
    const auto cost = [&](double processor, double cable) {
      processor *= size * (0.5 + any(random));
      cable *= size * (0.5 + any(random));
      const double longer = std::max(processor, cable), shorter = std::min(processor, cable);
      return Cost{longer + 0.1 * any(random) * shorter + 0.01 * any(random), processor, cable};
    };
    ReadyBucket one = bucket(i + 1 == buckets ? step.compute : ready, cost(1, 5));
    one.bytes = static_cast<std::uint64_t>(size * 1e6);
    if (any(random) < 0.9) one.costs[1] = cost(1.5, 2.5);
    if (any(random) < 0.8) one.costs[2] = cost(2, 0.1);
    step.buckets.push_back(one);
  }
  return step;
}

template <class Function>
void for_all(const StepModel& step, Function function) {
  Ways ways(step.buckets.size());
  const auto visit = [&](auto&& self, std::size_t i) -> void {
    if (i == ways.size()) return function(ways);
    for (const Way way : {kE, kH, kT}) {
      if (!step.buckets[i].allows(way)) continue;
      ways[i] = way;
      self(self, i + 1);
    }
  };
  visit(visit, 0);
}

TEST(Choice, no_other_assignment_is_as_fast_and_gives_up_less) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 400; ++round) {
    const StepModel step = drawn(random, 1 + random() % 7);
    const double tolerance = round % 2 == 0 ? 0.01 : 0.1;
    const Ways chosen = choose(step, tolerance);
    double fastest = 1e9;
    for_all(step, [&](const Ways& ways) { fastest = std::min(fastest, seconds(step, ways)); });
    EXPECT_LE(seconds(step, chosen), fastest * (1 + tolerance) + 1e-9) << round;
    auto least = loss(step, chosen);
    for_all(step, [&](const Ways& ways) {
      if (seconds(step, ways) < fastest * (1 + tolerance) - 1e-9)
        least = std::min(least, loss(step, ways));
    });
    EXPECT_EQ(loss(step, chosen), least) << round;
  }
}

TEST(Choice, hundreds_of_different_buckets_are_no_matter) {
  std::mt19937_64 random(2);
  for (int round = 0; round < 3; ++round) {
    const StepModel step = drawn(random, 300);
    const double chosen = seconds(step, choose(step, 0.01));
    for (const Way way : {kE, kH, kT}) EXPECT_LE(chosen, 1.02 * seconds(step, all_by(step, way)));
  }
}

TEST(Choice, small_differences_change_nothing) {
  const ChoiceRules rules;
  const auto step_of = [](double exact, double half) {
    return StepModel{.compute = 1, .buckets = {bucket(1, wire(exact), wire(half))}};
  };
  EXPECT_EQ(reconsider(step_of(1.0, 0.96), {kE}, rules), (Ways{kE})) << "2% of the step";
  EXPECT_EQ(reconsider(step_of(1.0, 0.9), {kE}, rules), (Ways{kH})) << "5%";
  EXPECT_EQ(reconsider(step_of(0.917, 0.9), {kH}, rules), (Ways{kH})) << "0.9% for exact gradients";
  EXPECT_EQ(reconsider(step_of(0.905, 0.9), {kH}, rules), (Ways{kE})) << "0.3%";
  EXPECT_EQ(reconsider(step_of(0.8, 0.9), {kH}, rules), (Ways{kE}));
}

TEST(Choice, what_was_chosen_is_not_reconsidered_at_once) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 200; ++round) {
    const StepModel step = drawn(random, 1 + random() % 12);
    const Ways now = choose(step, ChoiceRules().tolerance);
    const Ways next = reconsider(step, now, {});
    EXPECT_LE(loss(step, next), loss(step, now));
    EXPECT_EQ(reconsider(step, next, {}), next);
  }
}

}  // namespace
}  // namespace taco::pg::lightcc
