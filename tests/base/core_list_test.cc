#include "base/core_list.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace taco {
namespace {

using Cores = std::vector<int>;

TEST(CoreList, KeepsTheOrderOfItsCoresAndRanges) {
  EXPECT_EQ(cores_from("3"), Cores{3});
  EXPECT_EQ(cores_from("2,5"), (Cores{2, 5}));
  EXPECT_EQ(cores_from("4-7"), (Cores{4, 5, 6, 7}));
  EXPECT_EQ(cores_from("9,0-2,1023"), (Cores{9, 0, 1, 2, 1023}));
  EXPECT_EQ(cores_from("5-5"), Cores{5});
}

TEST(CoreList, IsNothingWhereItIsMalformed) {
  for (const char* list : {"", ",", "1,", ",1", "a", "1-", "-1", "1-2-3", "3-1", "1,1", "0-3,2",
                           "1024", "1 ,2", "1;2", "+1", "0x1", "99999999999"}) {
    EXPECT_FALSE(cores_from(list)) << list;
  }
}

}  // namespace
}  // namespace taco
