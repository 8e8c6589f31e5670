// Puts, signals and waits over the loopback network, in order and shuffled.
#include <gtest/gtest.h>

#include <random>

#include "support/window_ranks.h"

namespace taco::pg {
namespace {

using kernels::Dtype;
using testing::Bytes;
using testing::one_sided;
using testing::put;
using testing::same;
using testing::signal;
using testing::try_put;
using testing::values;
using testing::wait_signal;
using testing::WindowRanks;

void expect_ok(const Status& status) { EXPECT_TRUE(status.ok()) << status.message(); }

class WindowSeeds : public ::testing::TestWithParam<std::uint64_t> {};
INSTANTIATE_TEST_SUITE_P(Seeds, WindowSeeds, ::testing::Range<std::uint64_t>(0, 16));

TEST_P(WindowSeeds, PutsWriteWhereTheySayAndNowhereElse) {
  constexpr std::size_t kSection = 70'000;  // of each rank, in everybody's window
  constexpr std::size_t kGap = 7;
  const std::vector<std::size_t> sizes = {0, 1, 200, 1004, 1005, 5000, 60'000};
  const auto data_of = [](int from, std::size_t bytes) {
    return values(Dtype::kU8, bytes, from, static_cast<int>(bytes));
  };
  WindowRanks windows({.world = 3, .seed = GetParam()}, 3 * kSection);
  windows.run([&](int rank, Communicator& group) {
    std::vector<Bytes> data;
    for (const std::size_t bytes : sizes) data.push_back(data_of(rank, bytes));
    std::vector<OperationPtr> puts;
    for (int to = 0; to < 3; ++to) {
      std::size_t offset = rank * kSection;
      for (Bytes& each : data) {
        puts.push_back(put(group, each, to, offset + kGap));
        offset += kGap + each.size();
      }
    }
    for (const OperationPtr& each : puts) expect_ok(each->wait(0));
    for (int from = 0; from < 3; ++from)
      for (std::size_t i = 0; i < sizes.size(); ++i) expect_ok(wait_signal(group, from));
  });
  EXPECT_TRUE(windows.zones_are_untouched());
  Bytes expected(3 * kSection, WindowRanks::kUntouched);
  for (int from = 0; from < 3; ++from) {
    auto next = expected.begin() + static_cast<std::ptrdiff_t>(from * kSection);
    for (const std::size_t bytes : sizes)
      next = std::ranges::copy(data_of(from, bytes), next + kGap).out;
  }
  for (int rank = 0; rank < 3; ++rank) EXPECT_TRUE(same(windows.content(rank), expected)) << rank;
}

TEST_P(WindowSeeds, ASignalIsCountedWhenAllPutsBeforeItHaveLanded) {
  constexpr int kPuts = 60;
  constexpr std::size_t kSlot = 3000;
  WindowRanks windows({.world = 2, .seed = GetParam()}, kPuts * kSlot);
  const auto size_of = [](int i) { return i % 3 == 0 ? kSlot : std::size_t{10} + i; };
  windows.run([&](int rank, Communicator& group) {
    if (rank == 0) {
      std::vector<Bytes> data;
      std::vector<OperationPtr> puts;
      for (int i = 0; i < kPuts; ++i) data.push_back(Bytes(size_of(i), std::byte(i + 1)));
      for (int i = 0; i < kPuts; ++i) puts.push_back(put(group, data[i], 1, i * kSlot));
      for (const OperationPtr& each : puts) expect_ok(each->wait(0));
      return;
    }
    for (int i = 0; i < kPuts; ++i) {
      expect_ok(wait_signal(group, 0));
      for (int before = 0; before <= i; ++before) {
        const std::byte expected{static_cast<unsigned char>(before + 1)};
        EXPECT_EQ(windows.at(1, before * kSlot), expected) << "after signal " << i;
        EXPECT_EQ(windows.at(1, before * kSlot + size_of(before) - 1), expected);
      }
    }
  });
}

TEST_P(WindowSeeds, PutsOfOneRankIntoTheSamePlaceLandInOrder) {
  constexpr int kPuts = 50;
  WindowRanks windows({.world = 2, .seed = GetParam()}, 40'000);
  windows.run([&](int rank, Communicator& group) {
    if (rank == 0) {
      std::vector<Bytes> data;
      std::vector<OperationPtr> puts;
      for (int i = 0; i < kPuts; ++i)
        data.push_back(Bytes(i % 2 == 0 ? 40'000 : 500, std::byte(i)));
      for (int i = 0; i < kPuts; ++i) puts.push_back(put(group, data[i], 1, i % 2 == 0 ? 0 : 9000));
      for (const OperationPtr& each : puts) expect_ok(each->wait(0));
    } else {
      for (int i = 0; i < kPuts; ++i) expect_ok(wait_signal(group, 0));
    }
  });
  Bytes expected(40'000, std::byte(kPuts - 2));
  std::fill_n(expected.begin() + 9000, 500, std::byte(kPuts - 1));
  EXPECT_TRUE(same(windows.content(1), expected));
}

TEST_P(WindowSeeds, PutsEndWithoutTheOwnersTakingPart) {
  constexpr int kPuts = 200;
  WindowRanks windows({.world = 2, .seed = GetParam()}, 100'000);
  std::vector<Bytes> data;
  std::vector<OperationPtr> puts;
  for (int i = 0; i < kPuts; ++i) data.push_back(Bytes(i % 2 == 0 ? 9000 : 100, std::byte(i)));
  for (int i = 0; i < kPuts; ++i) puts.push_back(put(windows.group(0), data[i], 1, i * 300));
  for (const OperationPtr& each : puts) expect_ok(each->wait(0));
  for (int i = 0; i < kPuts; ++i) expect_ok(wait_signal(windows.group(1), 0));
  EXPECT_TRUE(windows.zones_are_untouched());
}

TEST_P(WindowSeeds, SignalsAreCountedByRankAndTakenOneByOne) {
  WindowRanks windows({.world = 3, .seed = GetParam()}, 8);
  windows.run([&](int rank, Communicator& group) {
    if (rank != 0) {
      for (int i = 0; i < 20 * rank; ++i) expect_ok(signal(group, 0));
      expect_ok(wait_signal(group, 0));
      return;
    }
    for (int i = 0; i < 40; ++i) expect_ok(wait_signal(group, 2));
    for (int i = 0; i < 20; ++i) expect_ok(wait_signal(group, 1));
    // None is left of either.
    for (const int from : {1, 2}) {
      auto wait = one_sided(group, Kind::kWaitSignal, from);
      ASSERT_TRUE(wait.ok()) << wait.status().message();
      EXPECT_EQ((*wait)->wait(20 * kMillisecond).code(), Code::kTimeout);
      EXPECT_FALSE((*wait)->done());
      expect_ok(signal(group, from));
    }
  });
}

TEST_P(WindowSeeds, WaitsAreServedInTheirOrder) {
  WindowRanks windows({.world = 2, .seed = GetParam()}, 8);
  std::vector<OperationPtr> waits;
  for (int i = 0; i < 10; ++i) {
    auto wait = one_sided(windows.group(0), Kind::kWaitSignal, 1);
    ASSERT_TRUE(wait.ok()) << wait.status().message();
    waits.push_back(*wait);
  }
  for (int i = 0; i < 10; ++i) {
    EXPECT_FALSE(waits[i]->done());
    expect_ok(signal(windows.group(1), 0));
    expect_ok(waits[i]->wait(0));
  }
}

TEST(Window, ARankPutsIntoItsOwnWindowAndSignalsItself) {
  for (const int world : {1, 2}) {
    WindowRanks windows({.world = world}, 100);
    Bytes data(10, std::byte{9});
    expect_ok(put(windows.group(0), data, 0, 20)->wait(0));
    expect_ok(wait_signal(windows.group(0), 0));
    expect_ok(signal(windows.group(0), 0));
    expect_ok(wait_signal(windows.group(0), 0));
    Bytes expected(100, WindowRanks::kUntouched);
    std::fill_n(expected.begin() + 20, 10, std::byte{9});
    EXPECT_TRUE(same(windows.content(0), expected));
    auto outside = try_put(windows.group(0), data, 0, 91);
    ASSERT_FALSE(outside.ok());
    EXPECT_EQ(outside.status().code(), Code::kInvalidArgument);
    EXPECT_NE(outside.status().message().find("exceed the window"), std::string::npos);
  }
}

TEST(Window, AGroupOfOneHasNoSignalToWaitForThatItHasNotGiven) {
  WindowRanks windows({.world = 1}, 100);
  EXPECT_EQ(wait_signal(windows.group(0), 0).code(), Code::kInvalidArgument);
}

TEST(Window, CollectivesRunBesidePuts) {
  WindowRanks windows({.world = 3, .seed = 5}, 50'000);
  windows.run([&](int rank, Communicator& group) {
    Bytes data(50'000, std::byte(rank + 1)), sum = values(Dtype::kF32, 1000, rank);
    const OperationPtr one = put(group, data, (rank + 1) % 3, 0);
    OperationSpec spec{.kind = Kind::kAllReduce, .dtype = Dtype::kF32};
    spec.inputs = spec.outputs = {testing::piece(sum)};
    auto reduced = group.start(spec);
    ASSERT_TRUE(reduced.ok()) << reduced.status().message();
    expect_ok((*reduced)->wait(0));
    expect_ok(one->wait(0));
    expect_ok(wait_signal(group, (rank + 2) % 3));
    EXPECT_TRUE(same(windows.content(rank), Bytes(50'000, std::byte((rank + 2) % 3 + 1))));
  });
}

TEST(Window, OnlyAGroupWithAWindowTakesItsOperations) {
  WindowRanks windows({.world = 2}, 100);
  Bytes data(10);
  auto put_elsewhere = try_put(windows.ranks().group(0), data, 1, 0);
  ASSERT_FALSE(put_elsewhere.ok());
  EXPECT_NE(put_elsewhere.status().message().find("no window"), std::string::npos);
  OperationSpec spec{.kind = Kind::kSend, .root = 1};
  spec.inputs = {testing::piece(data)};
  EXPECT_EQ(windows.group(0).start(spec).status().code(), Code::kInvalidArgument);
  for (const int peer : {-1, 2}) {
    auto outside = one_sided(windows.group(0), Kind::kSignal, peer);
    ASSERT_FALSE(outside.ok());
    EXPECT_NE(outside.status().message().find("out of range"), std::string::npos);
  }
}

}  // namespace
}  // namespace taco::pg
