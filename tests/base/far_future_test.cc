// Times and lengths that 64 bits do not hold.
#include "base/far_future.h"

#include <gtest/gtest.h>

namespace taco {
namespace {

TEST(FarFuture, milliseconds_beyond_the_range_are_never_over) {
  EXPECT_EQ(from_milliseconds(0), 0);
  EXPECT_EQ(from_milliseconds(1500), 1'500'000'000);
  EXPECT_EQ(from_milliseconds(kNever / kMillisecond), kNever / kMillisecond * kMillisecond);
  EXPECT_EQ(from_milliseconds(kNever / kMillisecond + 1), kNever);
  EXPECT_EQ(from_milliseconds(kNever), kNever);
}

TEST(FarFuture, points_beyond_the_range_are_never) {
  EXPECT_EQ(later(5, 7), 12);
  EXPECT_EQ(later(kNever - 7, 7), kNever);
  EXPECT_EQ(later(kNever - 7, 8), kNever);
  EXPECT_EQ(later(1, kNever), kNever);
  EXPECT_EQ(later(kNever, 1), kNever);
}

}  // namespace
}  // namespace taco
