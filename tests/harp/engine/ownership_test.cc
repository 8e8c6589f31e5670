// Functions that end in _st need the engine's token; who calls one without it is noticed.
#include <gtest/gtest.h>

#include "base/assert.h"
#include "harp/engine/engine_core.h"
#include "harp/engine/stack_core.h"

namespace taco::harp {
namespace {

std::shared_ptr<Stack> make_stack() {
  auto made = StackCore::create(StackOptions());
  EXPECT_TRUE(made.ok()) << made.status().message();
  return made.ok() ? std::move(made).value() : nullptr;
}

TEST(Ownership, ATaskHoldsTheToken) {
  const auto stack = make_stack();
  ASSERT_NE(stack, nullptr);
  struct Look final : Task {
    Event done;
    Time now = 0;
    void run_st(Transport& transport) override {
      now = transport.now_st();
      done.set();
    }
  } look;
  stack->engine().submit(look, true);
  ASSERT_TRUE(stack->engine().wait(look.done, monotonic_now() + 20 * kSecond));
  EXPECT_GT(look.now, 0);
}

TEST(Ownership, WhoHasNoTokenIsNoticed) {
  if (!kAssertions) GTEST_SKIP() << "assertions are off in this build";
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // the stack has threads
  const auto stack = make_stack();
  ASSERT_NE(stack, nullptr);
  Transport& transport = stack->engine().transport();
  Timer timer;
  EXPECT_DEATH((void)transport.now_st(), "without the engine's token");
  EXPECT_DEATH(transport.arm_st(timer, 1), "without the engine's token");
  EXPECT_DEATH(transport.forget_group_st(1), "without the engine's token");
}

}  // namespace
}  // namespace taco::harp
