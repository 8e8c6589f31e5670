// A window of steps: its prediction of the next, and when earlier ones no longer count.
#include "pg/lightcc/step_window.h"

#include <gtest/gtest.h>

#include <random>

namespace taco::pg::lightcc {
namespace {

// Steps of one bucket that is ready after `ready` seconds and averaged after `end`.
void add(StepWindow& window, int steps, double ready, double end) {
  for (int i = 0; i < steps; ++i) window.add({ready, end});
}

TEST(StepWindow, steps_that_are_alike_leave_no_doubt) {
  StepWindow window;
  add(window, 3, 1, 1.5);
  const StepWindow::Summary summary = window.summary();
  EXPECT_EQ(summary.medians, (std::vector<double>{1, 1.5}));
  EXPECT_EQ(summary.seconds_off, 0);
  EXPECT_EQ(summary.exposed_off, 0);
  EXPECT_FALSE(summary.otherwise);
}

TEST(StepWindow, doubt_shrinks_as_steps_are_added_and_covers_the_truth) {
  int missed = 0;
  for (unsigned seed = 1; seed <= 200; ++seed) {
    std::mt19937_64 random(seed);
    std::uniform_real_distribution<double> varied(0.6, 1.4);
    StepWindow window;
    double last = 1e9;
    for (const int steps : {9, 55}) {
      for (int i = 0; i < steps; ++i) window.add({0.5, varied(random)});
      const StepWindow::Summary summary = window.summary();
      EXPECT_LT(summary.seconds_off, last) << "seed " << seed;
      missed += std::abs(summary.medians[1] - 1) > summary.seconds_off ? 1 : 0;
      last = summary.seconds_off;
    }
  }
  EXPECT_LE(missed, 8) << "of 400";
}

TEST(StepWindow, steps_before_a_change_are_forgotten) {
  StepWindow window;
  add(window, 60, 1, 1.1);
  EXPECT_FALSE(window.summary().otherwise);
  add(window, 6, 1, 3);
  const StepWindow::Summary summary = window.summary();
  EXPECT_TRUE(summary.otherwise);
  EXPECT_EQ(summary.medians, (std::vector<double>{1, 3}));
  EXPECT_FALSE(window.summary().otherwise) << "told once";
}

TEST(StepWindow, one_slow_step_is_no_change) {
  StepWindow window;
  add(window, 30, 1, 1.1);
  add(window, 1, 1, 100);
  add(window, 5, 1, 1.1);
  const StepWindow::Summary summary = window.summary();
  EXPECT_FALSE(summary.otherwise);
  EXPECT_EQ(summary.medians, (std::vector<double>{1, 1.1}));
}

}  // namespace
}  // namespace taco::pg::lightcc
