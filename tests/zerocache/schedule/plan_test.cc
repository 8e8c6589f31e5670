// Predictions of steps: the time of what computes, of what moves, and of both beside one another.
#include "zerocache/schedule/plan.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace taco::zerocache {
namespace {

constexpr std::size_t kPage = std::size_t{1} << 20;
constexpr std::size_t kMatrix = 4 * kPage;

double of(const double (&copies)[kWays], Way way) { return copies[static_cast<int>(way)]; }

// Layers of one matrix each, with Adam's state: three times four pages.
PlannedModel layers(std::uint32_t count, Duration forward) {
  PlannedModel model;
  for (std::uint32_t i = 0; i < count; ++i) {
    model.tensors.push_back({std::to_string(i), kMatrix, 4});
    model.modules.push_back({{i}, forward, 2 * forward});
  }
  model.kinds = {StateKind::kExpAvg, StateKind::kExpAvgSq};
  return model;
}

Costs costs_of(double link, double disk) {
  Costs costs;
  costs.page_bytes = kPage;
  for (const Way way : {Way::kUpload, Way::kDownload}) {
    costs.ways[static_cast<int>(way)].bytes_per_second = link;
  }
  for (const Way way : {Way::kRead, Way::kWrite}) {
    costs.ways[static_cast<int>(way)].bytes_per_second = disk;
  }
  return costs;
}

TEST(Plan, WhatFitsIntoMemoryTakesWhatItsComputingTakes) {
  auto program = program_of(layers(8, kMillisecond), kPage);
  ASSERT_TRUE(program.ok()) << program.status().message();
  EXPECT_EQ(program->held(), 8u * 4 * 3);
  EXPECT_EQ(program->needed_at_once(Tier::kDevice), 4u);
  EXPECT_EQ(program->needed_at_once(Tier::kHost), 2u);
  auto found = predict(*program, {200, 200, 0}, costs_of(10e9, 1e9));
  ASSERT_TRUE(found.ok()) << found.status().message();
  // A chunk of the step: 28 bytes for each of its elements.
  const auto chunk = static_cast<Duration>(kPage / 4 * 28 / 40e9 * 1e9);
  EXPECT_EQ(found->compute, 8 * 3 * kMillisecond + 8 * 4 * chunk);
  EXPECT_EQ(found->time, found->compute);
  EXPECT_EQ(of(found->copies, Way::kUpload), 0);
}

TEST(Plan, WhatIsOnDiskTakesWhatTheDiskTakes) {
  auto program = program_of(layers(16, kMicrosecond), kPage);
  ASSERT_TRUE(program.ok());
  auto found = predict(*program, {12, 20, 400}, costs_of(100e9, 1e9));
  ASSERT_TRUE(found.ok()) << found.status().message();
  const double reads = of(found->copies, Way::kRead), least = of(found->least, Way::kRead);
  EXPECT_GE(reads, least);
  EXPECT_GE(least, 16 * 4 * 3 - 32) << "what does not stay in memory";
  EXPECT_LE(reads, 2 * least);
  const double disk_time = reads * kPage / 1e9;
  // Reads count when they start: one that the last step started may arrive in the step after it.
  EXPECT_GE(static_cast<double>(found->time) / 1e9, (reads - 1) * kPage / 1e9);
  EXPECT_LE(static_cast<double>(found->time) / 1e9, 1.6 * disk_time);
  EXPECT_GT(found->hits + found->misses, 0);
}

TEST(Plan, ADiskThatTakesTurnsTakesWhatBothWaysTakeTogether) {
  auto program = program_of(layers(16, kMicrosecond), kPage);
  ASSERT_TRUE(program.ok());
  Costs costs = costs_of(100e9, 1e9);
  costs.ways[static_cast<int>(Way::kWrite)].bytes_per_second = 0.5e9;
  const Capacities room = {12, 20, 400};
  auto at_once = predict(*program, room, costs, DiskWays::kAtOnce);
  auto in_turns = predict(*program, room, costs, DiskWays::kInTurns);
  ASSERT_TRUE(at_once.ok() && in_turns.ok());
  // Reads of steps before and after this one may be counted.
  const double disk_time = (of(in_turns->copies, Way::kRead) - 1) * kPage / 1e9 +
                           (of(in_turns->copies, Way::kWrite) - 1) * kPage / 0.5e9;
  EXPECT_GE(static_cast<double>(in_turns->time) / 1e9, disk_time);
  EXPECT_LE(static_cast<double>(in_turns->time) / 1e9, 1.2 * disk_time);
  EXPECT_LT(static_cast<double>(at_once->time) / 1e9, 0.9 * disk_time);
}

TEST(Plan, AFasterDiskAndMoreMemoryTakeNoLonger) {
  auto program = program_of(layers(16, kMillisecond), kPage);
  ASSERT_TRUE(program.ok());
  const auto time = [&](std::uint32_t host, double disk) {
    auto found = predict(*program, {12, host, 400}, costs_of(20e9, disk));
    EXPECT_TRUE(found.ok()) << found.status().message();
    return found.ok() ? static_cast<double>(found->time) : 0.0;
  };
  EXPECT_GT(time(20, 0.5e9), 1.3 * time(20, 1e9));
  EXPECT_GT(time(20, 1e9), 1.3 * time(120, 1e9));
}

TEST(Plan, BFloat16HasAMasterCopyAndTwoPagesOfEachKindForOne) {
  PlannedModel model = layers(4, kMillisecond);
  for (TensorSpec& tensor : model.tensors) tensor = {tensor.name, kMatrix / 2, 2};
  auto program = program_of(model, kPage);
  ASSERT_TRUE(program.ok());
  EXPECT_EQ(program->held(), 4u * (2 + 3 * 4));
  EXPECT_EQ(program->needed_at_once(Tier::kHost), 3u);
}

TEST(Plan, WhatDoesNotFitSaysWhatHasToBeLarger) {
  auto program = program_of(layers(8, kMillisecond), kPage);
  ASSERT_TRUE(program.ok());
  const auto message = [&](const Capacities& room) {
    return predict(*program, room, costs_of(1e9, 1e9)).status().message();
  };
  EXPECT_NE(message({3, 40, 400}).find("device memory holds 3 pages"), std::string::npos);
  EXPECT_NE(message({8, 2, 400}).find("host memory holds 2 pages"), std::string::npos);
  EXPECT_NE(message({8, 8, 8}).find("memory and disk"), std::string::npos);
}

TEST(Plan, ARunThatWasRecordedIsRunAgain) {
  RunRecorder recorder(8);
  const auto run = [&](Time now) {
    recorder.begin_run("train", now);
    for (PageId page = 0; page < 8; ++page, now += 100) {
      const Access access{page, Tier::kHost, true, true};
      recorder.begin(now, page, {&access, 1});
      recorder.computing(now + 20);
    }
    recorder.end_run(now);
  };
  for (PageId page = 0; page < 7; ++page) {
    recorder.decided(0, {Action::Kind::kTake, {page, Tier::kHost, Tier::kHost}});
  }
  run(1000);
  const RunRecord record = recorder.last("train");
  const Program program = program_of(record);
  EXPECT_EQ(program.pages, 8u);
  EXPECT_EQ(program.contents, (std::vector<PageId>{0, 1, 2, 3, 4, 5, 6, 7}))
      << "what was there, and what was read";
  auto found = predict(program, {0, 8, 0}, costs_of(1e9, 1e9));
  ASSERT_TRUE(found.ok()) << found.status().message();
  EXPECT_EQ(found->compute, 8 * 80);
  EXPECT_EQ(found->time, 8 * 80);
}

}  // namespace
}  // namespace taco::zerocache
