#include "harp/engine/room_watch.h"

#include <gtest/gtest.h>

namespace taco::harp {
namespace {

TEST(RoomWatch, EachAddressIsWatchedWhileItIsFull) {
  RoomWatch watch;
  EXPECT_TRUE(watch.is_empty());
  EXPECT_FALSE(watch.change(0, 10, false));
  EXPECT_TRUE(watch.change(0, 10, true));
  EXPECT_FALSE(watch.change(0, 10, true));
  EXPECT_FALSE(watch.is_empty());
}

TEST(RoomWatch, AnAddressThatIsFullLaterThanAnotherIsWatchedToo) {
  RoomWatch watch;
  EXPECT_TRUE(watch.change(0, 10, true));
  EXPECT_FALSE(watch.change(1, 11, false));
  EXPECT_TRUE(watch.change(0, 10, false)) << "it has room, and would let nobody sleep";
  EXPECT_TRUE(watch.change(1, 11, true));
  EXPECT_TRUE(watch.change(1, 11, false));
  EXPECT_TRUE(watch.is_empty());
}

TEST(RoomWatch, ASocketThatTakesTheAddresssPlaceIsWatchedInItsTurn) {
  RoomWatch watch;
  EXPECT_TRUE(watch.change(0, 10, true));
  EXPECT_TRUE(watch.change(0, 12, true));
  EXPECT_TRUE(watch.change(0, 12, false));
  EXPECT_TRUE(watch.is_empty());
  EXPECT_TRUE(watch.change(0, 12, true));
  EXPECT_TRUE(watch.change(0, 13, false)) << "the one that was watched is closed";
  EXPECT_TRUE(watch.is_empty());
}

}  // namespace
}  // namespace taco::harp
