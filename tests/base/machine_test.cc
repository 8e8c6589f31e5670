#include "base/machine.h"

#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include "support/machine_table.h"

namespace taco {
namespace {

enum class Door { kClosed, kOpen, kGone };

constexpr bool leads_to(Door from, Door to) {
  return from != Door::kGone && from != to && (from == Door::kOpen || to == Door::kOpen);
}

TEST(Machine, it_begins_in_the_first_state_and_goes_where_it_may) {
  Machine<Door> door;
  EXPECT_TRUE(door.is(Door::kClosed));
  door.go(Door::kOpen);
  door.go(Door::kClosed);
  door.go(Door::kOpen);
  door.go(Door::kGone);
  EXPECT_EQ(door.state(), Door::kGone);
}

TEST(Machine, where_it_may_not_go_it_ends_the_process) {
  if (!kAssertions) GTEST_SKIP() << "assertions are off in this build";
  Machine<Door> door;
  EXPECT_DEATH(door.go(Door::kGone), "state 0 does not lead to 2");
}

TEST(Machine, a_table_that_says_something_else_is_found) {
  expect_table<Door>({{Door::kClosed, {Door::kOpen}},
                      {Door::kOpen, {Door::kClosed, Door::kGone}},
                      {Door::kGone, {}}});
  EXPECT_NONFATAL_FAILURE(expect_table<Door>({{Door::kClosed, {}}, {Door::kOpen, {Door::kClosed}}}),
                          "from 0 to 1");
}

}  // namespace
}  // namespace taco
