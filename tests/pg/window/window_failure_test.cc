// Puts that a window refuses, ranks that die, windows that are closed while others write.
#include <gtest/gtest.h>

#include <array>
#include <atomic>

#include "support/eventually.h"
#include "support/window_ranks.h"

namespace taco::pg {
namespace {

using kernels::Dtype;
using testing::Bytes;
using testing::eventually;
using testing::one_sided;
using testing::put;
using testing::same;
using testing::signal;
using testing::try_put;
using testing::wait_signal;
using testing::WindowRanks;

constexpr std::size_t kBytes = 10'000;

::testing::AssertionResult says(const Status& status, Code code,
                                const std::vector<std::string>& words) {
  if (status.code() != code) {
    return ::testing::AssertionFailure()
           << "code " << static_cast<int>(status.code()) << ": " << status.message();
  }
  for (const std::string& word : words) {
    if (status.message().find(word) == std::string::npos)
      return ::testing::AssertionFailure() << "no '" << word << "' in: " << status.message();
  }
  return ::testing::AssertionSuccess();
}

// A put that its sender took for a good one: a rank in error about the window, or worse.
struct Forged {
  const char* name;
  std::uint64_t offset;
  std::size_t bytes;
  Dtype dtype;
  const char* reason;
};
const Forged kForged[] = {
    {"beyond", kBytes - 9, 10, Dtype::kU8, "exceed the window"},
    {"far beyond", std::uint64_t{1} << 63, 10, Dtype::kU8, "exceed the window"},
    {"overflowing", ~std::uint64_t{0} - 4, 10, Dtype::kU8, "exceed the window"},
    {"longer", 0, kBytes + 1, Dtype::kU8, "exceed the window"},
    {"other dtype", 0, 8, Dtype::kF32, "float32 does not match"},
};

TEST(WindowFailure, ThePutThatAWindowRefusesIsNeverWrittenAndBothRanksHearWhy) {
  for (const Forged& forged : kForged) {
    SCOPED_TRACE(forged.name);
    WindowRanks windows({.world = 3, .seed = 3}, kBytes);
    auto wait = one_sided(windows.group(2), Kind::kWaitSignal, 0);
    ASSERT_TRUE(wait.ok());
    Bytes data(forged.bytes, std::byte{1});
    auto one = try_put(windows.group(0), data, 1, forged.offset, forged.dtype);
    ASSERT_TRUE(one.ok()) << one.status().message();
    (void)(*one)->wait(0);  // a short one is done once it is on its way
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_TRUE(eventually([&] { return !windows.group(rank).error().ok(); }));
      EXPECT_TRUE(says(windows.group(rank).error(), Code::kMismatch,
                       {"window of 'window' on rank 1, written by rank 0", forged.reason}));
    }
    EXPECT_EQ((*wait)->wait(0).code(), Code::kMismatch) << (*wait)->status().message();
    EXPECT_TRUE(windows.zones_are_untouched());
    EXPECT_TRUE(same(windows.content(1), Bytes(kBytes, WindowRanks::kUntouched)));
    EXPECT_TRUE(windows.ranks().group(0).error().ok()) << "the program's own group goes on";
  }
}

TEST(WindowFailure, AWaitWithoutASignalTimesOutAndSaysWhose) {
  WindowRanks windows({.world = 2}, kBytes);
  const Status status = wait_signal(windows.group(0), 1, 50 * kMillisecond);
  EXPECT_TRUE(says(status, Code::kTimeout, {"wait_signal of rank 1", "No signal of that rank"}));
  EXPECT_TRUE(eventually([&] { return !windows.group(1).error().ok(); }));
  EXPECT_FALSE(signal(windows.group(1), 0).ok()) << "the window has failed";
}

TEST(WindowFailure, ADeadRankEndsWhatWaitsForItAndIsNamed) {
  WindowRanks windows({.world = 3}, kBytes);
  Bytes data(5000);
  auto wait = one_sided(windows.group(0), Kind::kWaitSignal, 2);
  ASSERT_TRUE(wait.ok());
  windows.ranks().network().hold(1, 2, true);
  const OperationPtr one = put(windows.group(1), data, 2, 0);
  windows.ranks().network().kill(2);
  EXPECT_TRUE(says((*wait)->wait(0), Code::kPeerLost, {"rank 2", "wait_signal"}));
  EXPECT_TRUE(says(one->wait(0), Code::kPeerLost, {"rank 2", "put"}));
  EXPECT_EQ((*wait)->status().peer_loss()->rank, 2);
}

TEST(WindowFailure, AnAbortEndsAllThatIsOpen) {
  WindowRanks windows({.world = 2}, kBytes);
  windows.ranks().network().hold(0, 1, true);
  Bytes data(5000);
  const OperationPtr one = put(windows.group(0), data, 1, 0);
  auto wait = one_sided(windows.group(1), Kind::kWaitSignal, 0);
  windows.group(1).abort(Status(Code::kAborted, "the user says so"));
  EXPECT_TRUE(says(one->wait(0), Code::kAborted, {"the user says so"}));
  EXPECT_TRUE(says((*wait)->wait(0), Code::kAborted, {"the user says so"}));
}

TEST(WindowFailure, ASignalOfOneWhoHasLeftIsStillTakenAndNoOther) {
  WindowRanks windows({.world = 2}, kBytes);
  Bytes data(5000, std::byte{4});
  EXPECT_TRUE(put(windows.group(0), data, 1, 0)->wait(0).ok());
  (void)windows.group(0).close(kSecond);
  EXPECT_TRUE(wait_signal(windows.group(1), 0).ok());
  EXPECT_EQ(windows.content(1)[4999], std::byte{4});
  EXPECT_TRUE(says(wait_signal(windows.group(1), 0), Code::kPeerLost, {"rank 0", "has left"}));
}

TEST(WindowFailure, AWaitEndsWhenItsRankLeavesThoughTheTwoHadNeverMet) {
  for (const bool before : {false, true}) {
    WindowRanks windows({.world = 3}, kBytes);
    if (before) (void)windows.group(2).close(kSecond);
    auto wait = one_sided(windows.group(0), Kind::kWaitSignal, 2);
    ASSERT_TRUE(wait.ok());
    if (!before) {
      EXPECT_EQ((*wait)->wait(20 * kMillisecond).code(), Code::kTimeout);
      (void)windows.group(2).close(kSecond);
    }
    EXPECT_TRUE(says((*wait)->wait(0), Code::kPeerLost, {"rank 2", "has left"}));
  }
}

class WindowClosing : public ::testing::TestWithParam<std::uint64_t> {};
INSTANTIATE_TEST_SUITE_P(Seeds, WindowClosing, ::testing::Range<std::uint64_t>(0, 16));

TEST_P(WindowClosing, NothingIsWrittenAfterItAndWhoeverPutsHearsOfIt) {
  WindowRanks windows({.world = 3, .seed = GetParam()}, kBytes);
  std::atomic<int> done{0};
  std::array<Status, 3> ends;
  windows.run([&](int rank, Communicator& group) {
    if (rank != 0) {
      std::vector<Bytes> data;
      for (int i = 0; i < 8; ++i) data.push_back(Bytes(i % 2 == 0 ? 9000 : 100, std::byte(i)));
      // Eight at a time, for ever: until the owner is gone.
      while (ends[rank].ok()) {
        std::vector<OperationPtr> puts;
        for (Bytes& each : data) {
          auto one = try_put(group, each, 0, each.size() % 1000);
          if (!one.ok()) ends[rank] = one.status();
          if (one.ok()) puts.push_back(*one);
        }
        for (const OperationPtr& each : puts) {
          const Status status = each->wait(0);
          if (!status.ok()) ends[rank] = status;
        }
        ++done;
      }
      return;
    }
    EXPECT_TRUE(eventually([&] { return done.load() > 4; }));
    auto wait = one_sided(group, Kind::kWaitSignal, 0);
    ASSERT_TRUE(wait.ok());
    const Status closed(Code::kAborted, "the window was closed");
    EXPECT_TRUE(group.close_window(closed).ok());
    windows.fill(0, std::byte{0xee});  // as if the memory were another's now
    EXPECT_TRUE(says((*wait)->wait(0), Code::kAborted, {"the window was closed"}));
    EXPECT_TRUE(group.close_window(closed).ok()) << "it may be closed twice";
    EXPECT_TRUE(says(wait_signal(group, 1), Code::kAborted, {"closed"}));
    (void)group.close(kSecond);
  });
  for (const int rank : {1, 2}) {
    EXPECT_TRUE(ends[rank].code() == Code::kPeerLost || ends[rank].code() == Code::kAborted)
        << ends[rank].message();
  }
  EXPECT_TRUE(same(windows.content(0), Bytes(kBytes, std::byte{0xee})));
  EXPECT_TRUE(windows.zones_are_untouched());
}

}  // namespace
}  // namespace taco::pg
