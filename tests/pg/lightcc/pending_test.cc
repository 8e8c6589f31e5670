#include "pg/lightcc/pending.h"

#include <gtest/gtest.h>

namespace taco::pg::lightcc {
namespace {

using Values = std::vector<float>;

Values pending_of(const Pending& pending, std::size_t parameter, std::size_t elements) {
  Values sum(elements);
  pending.add_to(parameter, sum);
  return sum;
}

TEST(Pending, goes_out_with_the_parameters_next_gradient_and_is_gone) {
  Pending pending(2), sent(2);
  pending.add(1, 1, {10, 20});
  Values gradient = {1, 2, 3, 4};
  pending.move_into(1, gradient, &sent);
  EXPECT_EQ(gradient, (Values{1, 12, 23, 4}));
  EXPECT_TRUE(pending.empty());
  EXPECT_EQ(pending_of(sent, 1, 4), (Values{0, 10, 20, 0}));
  pending.move_into(1, gradient, &sent);
  EXPECT_EQ(gradient, (Values{1, 12, 23, 4}));
}

TEST(Pending, waits_for_a_gradient_that_is_not_zero_everywhere) {
  Pending pending(1), sent(1);
  pending.add(0, 0, {5});
  Values unused = {0, -0.0F};
  pending.move_into(0, unused, &sent);
  EXPECT_EQ(unused, (Values{0, 0}));
  EXPECT_EQ(pending_of(pending, 0, 2), (Values{5, 0}));
  Values used = {0, 1};
  pending.move_into(0, used, &sent);
  EXPECT_EQ(used, (Values{5, 1}));
}

TEST(Pending, of_other_parameters_stays) {
  Pending pending(2), sent(2);
  pending.add(0, 0, {5});
  Values gradient = {1};
  pending.move_into(1, gradient, &sent);
  EXPECT_EQ(gradient, Values{1});
  EXPECT_FALSE(pending.empty());
}

TEST(Pending, adds_up_where_ranges_meet) {
  Pending pending(1);
  pending.add(0, 0, {1, 2, 3});
  pending.add(0, 0, {1, 1, 1});
  pending.add(0, 2, {10});
  EXPECT_EQ(pending_of(pending, 0, 4), (Values{2, 3, 14, 0}));
}

TEST(Pending, is_taken_back_whole) {
  Pending pending(1), sent(1);
  pending.add(0, 1, {3});
  Values gradient = {1, 1};
  pending.move_into(0, gradient, &sent);
  pending.add(0, 0, {2});
  pending.take(sent);
  EXPECT_TRUE(sent.empty());
  EXPECT_EQ(pending_of(pending, 0, 2), (Values{2, 3}));
}

TEST(Pending, is_scaled_and_measured) {
  Pending pending(2);
  pending.add(0, 0, {3});
  pending.add(1, 0, {4});
  EXPECT_EQ(pending.squares(), 25);
  pending.scale(2);
  EXPECT_EQ(pending.squares(), 100);
}

TEST(Pending, zeros_are_not_kept) {
  Pending pending(1);
  pending.add(0, 0, {0, 0});
  EXPECT_TRUE(pending.empty());
}

}  // namespace
}  // namespace taco::pg::lightcc
