#include "base/assert.h"

#include <gtest/gtest.h>

namespace taco {
namespace {

TEST(Assert, what_holds_goes_on) {
  const int answer = 42;
  TACO_ASSERT(answer == 42);
  TACO_ASSERT(answer == 42, "and not %d", answer);
}

TEST(Assert, what_does_not_hold_ends_the_process_with_its_text_and_place) {
  if (!kAssertions) GTEST_SKIP() << "assertions are off in this build";
  const int answer = 41;
  EXPECT_DEATH(TACO_ASSERT(answer == 42), "assert_test.cc:[0-9]+: assertion failed: answer == 42");
  EXPECT_DEATH(TACO_ASSERT(answer == 42, "it is %d, not %s", answer, "42"),
               "assertion failed: answer == 42: it is 41, not 42");
}

TEST(Assert, the_condition_is_evaluated_exactly_where_assertions_are_on) {
  int evaluations = 0;
  TACO_ASSERT(++evaluations > 0);
  EXPECT_EQ(evaluations, kAssertions ? 1 : 0);
}

// An expression: it may stand where a statement without braces may.
TEST(Assert, it_is_one_statement) {
  const bool reached = true;
  if (reached)
    TACO_ASSERT(reached, "a branch of its own");
  else
    FAIL();
}

}  // namespace
}  // namespace taco
