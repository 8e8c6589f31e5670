// When a path is moved to other ports, when not, and when it is given up.
#include "harp/session/repathing.h"

#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <optional>

#include "support/machine_table.h"

namespace taco::harp {
namespace {

using Stage = Repathing::Stage;

TEST(Repathing, AMoveIsJudgedBeforeTheNext) {
  expect_table<Stage>({
      {Stage::kMeasuring, {Stage::kMoving}},
      {Stage::kMoving, {Stage::kJudging, Stage::kMeasuring}},
      {Stage::kJudging, {Stage::kReturning, Stage::kMeasuring}},
      {Stage::kReturning, {Stage::kMeasuring}},
  });
}

// Two paths that acknowledge so many packets in a millisecond, and somebody who looks as often.
struct Paths {
  double first = 10, second = 10;
  bool first_limited = true, second_limited = true;
  bool second_lives = true;
  Repathing moves;
  Time now = kSecond;
  double first_acked = 0, second_acked = 0;
  int back = 0;  // moves back

  std::optional<wire::PathMove> look() {
    now += kMillisecond;
    first_acked += first;
    second_acked += second;
    const std::array<Repathing::Reading, 2> readings{
        Repathing::Reading{wire::PathId{0}, static_cast<std::uint64_t>(first_acked), first_limited},
        Repathing::Reading{wire::PathId{1}, static_cast<std::uint64_t>(second_acked),
                           second_limited}};
    return moves.look(std::span(readings).first(second_lives ? 2 : 1), 0, now);
  }
  // Moves what is to be moved, at once; `then` is what comes of it. How many there were.
  int pass(
      Duration time, const std::function<void(wire::PathId)>& then = [](wire::PathId) {}) {
    int count = 0;
    for (const Time end = now + time; now < end;) {
      const auto move = look();
      if (!move) continue;
      if (move->back) {
        ++back;
      } else {
        ++count;
        then(move->path);
      }
      moves.on_moved(now);
    }
    return count;
  }
};

TEST(Repathing, TheSlowestIsMoved) {
  Paths paths{.first = 10, .second = 4};
  paths.pass(Repathing::kLook + 5 * kMillisecond,
             [](wire::PathId slow) { EXPECT_EQ(slow, wire::PathId{1}); });
  Paths other{.first = 4, .second = 10};
  EXPECT_EQ(other.pass(Repathing::kLook + 5 * kMillisecond,
                       [](wire::PathId slow) { EXPECT_EQ(slow, wire::PathId{0}); }),
            1);
}

TEST(Repathing, OneByWhichLittleIsSentIsLeftWhereItIs) {
  Paths paths{.first = 10, .second = 0, .second_limited = false};
  EXPECT_EQ(paths.pass(10 * kSecond), 0);
  Paths idle{.first = 0, .second = 0, .first_limited = false, .second_limited = false};
  EXPECT_EQ(idle.pass(10 * kSecond), 0);
}

TEST(Repathing, PausesDoNotCount) {
  Paths paths;
  for (int i = 0; i < 1000; ++i) {
    paths.now += 2 * Repathing::kPause;  // and a millisecond of work
    EXPECT_FALSE(paths.look().has_value());
  }
}

TEST(Repathing, WhereNoMoveBringsAnythingThereAreFewAndThenNone) {
  Paths paths;
  const int moves = paths.pass(30 * kSecond);
  EXPECT_EQ(moves, static_cast<int>(Repathing::kMaxInVain));
  EXPECT_TRUE(paths.moves.gave_up());
  EXPECT_EQ(paths.pass(60 * kSecond), 0);
}

TEST(Repathing, EachMoveInVainIsWaitedForTwiceAsLong) {
  Paths paths;
  std::array<Time, Repathing::kMaxInVain> at{};
  std::size_t moves = 0;
  paths.pass(30 * kSecond, [&](wire::PathId) { at.at(moves++) = paths.now; });
  ASSERT_EQ(moves, at.size());
  for (std::size_t i = 2; i < moves; ++i) {
    EXPECT_GE(at[i] - at[i - 1], at[i - 1] - at[i - 2]) << i;
    EXPECT_GE(at[i] - at[i - 1], Repathing::kFirstWait << (i - 1)) << i;
  }
}

TEST(Repathing, AsLongAsMovesBringSomethingTheyGoOn) {
  Paths paths;
  const int moves = paths.pass(2 * kSecond, [&](wire::PathId) { paths.second *= 1.2; });
  EXPECT_GT(moves, static_cast<int>(Repathing::kMaxInVain));
}

TEST(Repathing, AMoveThatBringsLessIsTakenBack) {
  Paths paths;
  bool moved = false;
  int moves = 0;
  for (const Time end = paths.now + kSecond; paths.now < end && paths.back == 0;) {
    const auto move = paths.look();
    if (!move) continue;
    moves += move->back ? 0 : 1;
    paths.back += move->back ? 1 : 0;
    EXPECT_EQ(move->path, wire::PathId{0});
    EXPECT_EQ(move->back, moved);
    moved = true;
    paths.first = 9;
    paths.moves.on_moved(paths.now);
  }
  EXPECT_EQ(paths.back, 1);
  EXPECT_EQ(moves, 1);
  paths.first = 10;
  EXPECT_EQ(paths.pass(30 * kSecond), static_cast<int>(Repathing::kMaxInVain) - 1);
  EXPECT_EQ(paths.back, 1) << "one that changes nothing is left alone";
}

TEST(Repathing, OneThatHasBroughtSomethingMakesUpForThoseInVain) {
  Paths paths;
  std::uint32_t moves = 0;
  paths.pass(30 * kSecond, [&](wire::PathId) {
    if (++moves == Repathing::kMaxInVain - 1) paths.first = paths.second = 20;
  });
  EXPECT_EQ(moves, 2 * Repathing::kMaxInVain - 1);
}

TEST(Repathing, WhereMuchLessIsCarriedThanBeforeItIsTriedAgain) {
  Paths paths;
  paths.pass(30 * kSecond);
  paths.first = 9;
  EXPECT_EQ(paths.pass(10 * kSecond), 0);
  paths.first = 4;
  EXPECT_GE(paths.pass(10 * kSecond), 1);
}

TEST(Repathing, AMoveThatNobodyAnswersIsInVain) {
  Paths paths;
  int asked = 0;
  for (const Time end = paths.now + 60 * kSecond; paths.now < end;) asked += paths.look() ? 1 : 0;
  EXPECT_EQ(asked, static_cast<int>(Repathing::kMaxInVain));
}

TEST(Repathing, ThoseThatComeOrGoAreMeasuredAnew) {
  Paths paths;
  for (int i = 0; i < 1000; ++i) {
    paths.second_lives = i % 40 < 20;
    EXPECT_FALSE(paths.look().has_value());
  }
}

TEST(Repathing, APeerIsObligedNowAndThen) {
  Repathing moves;
  EXPECT_TRUE(moves.may_oblige(kSecond));
  EXPECT_FALSE(moves.may_oblige(kSecond + kMillisecond));
  EXPECT_TRUE(moves.may_oblige(2 * kSecond));
}

}  // namespace
}  // namespace taco::harp
