#include "pg/lightcc/pending.h"

#include <gtest/gtest.h>

namespace taco::pg::lightcc {
namespace {

using Values = std::vector<float>;
using Undecided = Pending::Undecided;

Values pending_of(const Pending& pending, std::size_t parameter, std::size_t elements,
                  Pending::Answer answer = &Undecided::if_used) {
  Values sum(elements);
  pending.add_to(parameter, sum, answer);
  return sum;
}

TEST(Pending, goes_out_with_the_parameters_next_gradient_and_is_gone) {
  Pending pending(2);
  pending.add(1, 1, {10, 20});
  Values gradient = {1, 2, 3, 4};
  pending.move_into(1, gradient, true);
  EXPECT_EQ(gradient, (Values{1, 12, 23, 4}));
  EXPECT_TRUE(pending.empty());
  pending.move_into(1, gradient, true);
  EXPECT_EQ(gradient, (Values{1, 12, 23, 4}));
}

TEST(Pending, of_other_parameters_stays) {
  Pending pending(2);
  pending.add(0, 0, {5});
  Values gradient = {1};
  pending.move_into(1, gradient, true);
  EXPECT_EQ(gradient, Values{1});
  EXPECT_FALSE(pending.empty());
  EXPECT_FALSE(pending.empty(0));
  EXPECT_TRUE(pending.empty(1));
}

TEST(Pending, adds_up_where_ranges_overlap) {
  Pending pending(1);
  pending.add(0, 0, {1, 2, 3});
  pending.add(0, 0, {1, 1, 1});
  pending.add(0, 2, {10});
  EXPECT_EQ(pending_of(pending, 0, 4), (Values{2, 3, 14, 0}));
}

TEST(Pending, is_pending_again_unless_the_gradient_is_used) {
  for (const Pending::Answer answer :
       {&Undecided::if_used, &Undecided::if_kept, &Undecided::if_dropped}) {
    Pending pending(1);
    pending.add(0, 1, {3});
    Values gradient = {1, 1};
    pending.move_into(0, gradient, false);
    EXPECT_EQ(gradient, (Values{1, 4}));
    EXPECT_TRUE(pending.is_undecided(0));
    EXPECT_EQ(pending_of(pending, 0, 2), Values(2));
    pending.add(0, 0, {2});
    pending.decide(0, answer);
    EXPECT_FALSE(pending.is_undecided(0));
    const float back = answer == &Undecided::if_used ? 0 : 3;
    EXPECT_EQ(pending_of(pending, 0, 2), (Values{2, back}));
  }
}

TEST(Pending, has_an_answer_for_each_way_in_which_gradients_may_end) {
  const Undecided undecided = {
      .from = 1, .elements = 2, .if_used = {1, 2}, .if_kept = {3, 4}, .if_dropped = {}};
  Pending pending(1);
  pending.add(0, undecided);
  EXPECT_EQ(pending_of(pending, 0, 3), (Values{0, 1, 2}));
  EXPECT_EQ(pending_of(pending, 0, 3, &Undecided::if_kept), (Values{0, 3, 4}));
  EXPECT_EQ(pending_of(pending, 0, 3, &Undecided::if_dropped), Values(3));
  EXPECT_TRUE(pending.saved(0).empty());
  pending.decide(0, &Undecided::if_kept);
  ASSERT_EQ(pending.saved(0).size(), 1U);
  EXPECT_EQ(pending.saved(0)[0].values, (Values{3, 4}));
}

TEST(Pending, grows_by_ranges_and_not_by_how_often_they_come) {
  Pending pending(1);
  for (int i = 0; i < 100; ++i) {
    pending.add(0,
                {.from = 0, .elements = 2, .if_used = {1, 1}, .if_kept = {}, .if_dropped = {0, 1}});
  }
  EXPECT_EQ(pending_of(pending, 0, 2), (Values{100, 100}));
  EXPECT_EQ(pending.saved(0).size(), 1U);
  EXPECT_EQ(pending_of(pending, 0, 2, &Undecided::if_dropped), (Values{0, 100}));
}

// A second pass takes along what would be pending if the first one were used.
TEST(Pending, what_is_undecided_goes_out_as_if_the_gradient_were_used) {
  Pending pending(1);
  pending.add(0, {.from = 0, .elements = 1, .if_used = {1}, .if_kept = {2}, .if_dropped = {3}});
  Values gradient = {10};
  pending.move_into(0, gradient, false);
  EXPECT_EQ(gradient, Values{11});
  EXPECT_EQ(pending_of(pending, 0, 1), Values(1));
  pending.decide(0, &Undecided::if_dropped);
  EXPECT_EQ(pending_of(pending, 0, 1), Values{3});
}

TEST(Pending, is_scaled_and_measured) {
  Pending pending(3);
  pending.add(0, 0, {3});
  pending.add(1, 0, {4});
  pending.add(2, {.from = 0, .elements = 1, .if_used = {12}, .if_kept = {1}, .if_dropped = {1}});
  EXPECT_EQ(pending.squares(), 169);
  pending.scale(2);
  EXPECT_EQ(pending.squares(), 4 * 169);
  EXPECT_EQ(pending_of(pending, 2, 1, &Undecided::if_dropped), Values{2});
}

TEST(Pending, zeros_are_not_kept) {
  Pending pending(1);
  pending.add(0, 0, {0, 0});
  pending.add(0, {.from = 0, .elements = 1, .if_used = {0}, .if_kept = {}, .if_dropped = {}});
  EXPECT_TRUE(pending.empty());
}

}  // namespace
}  // namespace taco::pg::lightcc
