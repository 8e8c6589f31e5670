// Tests what is kept of a run: by a recorder that is told, and by a mover of real pages.
#include "zerocache/schedule/run_record.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "base/timeline.h"
#include "support/mover_rig.h"

namespace taco::zerocache {
namespace {

using testing::MoverRig;
using testing::read_in;
using testing::write_in;

Action copy(PageId page, Tier from, Tier to) { return {Action::Kind::kCopy, {page, from, to}}; }
Action drop(PageId page, Tier tier) { return {Action::Kind::kDrop, {page, tier, tier}}; }

void one_run(RunRecorder& recorder, const std::string& name, Time now) {
  recorder.begin_run(name, now);
  recorder.begin(now, 1, {});
  recorder.computing(now);
  recorder.end_run(now + 5);
}

TEST(RunRecord, KeepsOperatorsWithWhatTheyComputed) {
  RunRecorder recorder(4);
  EXPECT_EQ(recorder.last("train").number, 0u);
  recorder.begin_run("train", 100);
  const std::vector<Access> first = {read_in(0), write_in(1)}, second = {read_in(2)};
  recorder.begin(110, 7, first);
  recorder.waited(112, 150, Way::kRead);
  recorder.computing(150);
  recorder.begin(180, 8, second);
  recorder.end_run(200);
  const RunRecord run = recorder.last("train");
  EXPECT_EQ(run.number, 1u);
  EXPECT_EQ(run.time(), 100);
  EXPECT_EQ(run.stalled(), 38);
  const std::vector<Use> uses = run.uses();
  ASSERT_EQ(uses.size(), 2u);
  EXPECT_EQ(uses[0].key, 7u);
  EXPECT_EQ(uses[0].compute, 30);
  EXPECT_EQ(uses[0].accesses, first);
  EXPECT_EQ(uses[1].accesses, second);
  EXPECT_EQ(uses[1].compute, 0) << "it never computed";
}

TEST(RunRecord, KnowsWhichPageWasWhereAtEachMoment) {
  RunRecorder recorder(4);
  recorder.decided(1, copy(3, Tier::kHost, Tier::kDevice));
  recorder.begin_run("train", 10);
  recorder.decided(11, copy(2, Tier::kDisk, Tier::kHost));
  recorder.decided(12, drop(3, Tier::kDevice));
  recorder.decided(13, drop(3, Tier::kDevice));  // a frame that was never had
  recorder.end_run(20);
  recorder.decided(21, drop(2, Tier::kHost));
  const RunRecord run = recorder.last("train");
  EXPECT_EQ(run.before, (std::vector<std::uint8_t>{0, 0, 0, bit(Tier::kDevice)}));
  ASSERT_EQ(run.changes.size(), 2u);
  EXPECT_TRUE(run.changes[0].came);
  EXPECT_EQ(run.changes[0].page, 2u);
  EXPECT_EQ(run.changes[1].tier, Tier::kDevice);
  EXPECT_FALSE(run.changes[1].came);
  one_run(recorder, "train", 30);
  EXPECT_EQ(recorder.last("train").before, (std::vector<std::uint8_t>{0, 0, 0, 0}));
}

TEST(RunRecord, ResidencyIsCountedByTierAndKindAtEachMoment) {
  RunRecorder recorder(4);
  recorder.decided(1, copy(3, Tier::kHost, Tier::kDevice));
  recorder.begin_run("train", 100);
  recorder.decided(120, copy(2, Tier::kDisk, Tier::kHost));
  recorder.decided(160, drop(3, Tier::kDevice));
  recorder.end_run(200);
  const std::vector<std::uint8_t> kinds = {0, 0, 1, 1};
  const auto found = residency_over(recorder.last("train"), kinds, 2, 3);
  const std::vector<std::uint32_t> expected = {
      0, 0, 0, 1, 1, 0,  // the device: kind 0 and kind 1, at 100, 150 and 200
      0, 0, 0, 0, 1, 1,  // the host
      0, 0, 0, 0, 0, 0,
  };
  EXPECT_EQ(found, expected);
}

TEST(RunRecord, CopiesThatEndAfterARunAreStillItsOwn) {
  RunRecorder recorder(4);
  for (int i = 0; i < 4; ++i) {
    one_run(recorder, "train", 10 * i);
    recorder.copied(Way::kWrite);
    one_run(recorder, "", 10 * i + 6);
    recorder.copied(Way::kWrite);
  }
  one_run(recorder, "eval", 100);
  recorder.copied(Way::kRead);
  const RunRecord run = recorder.last("train");
  EXPECT_EQ(run.number, 4u);
  EXPECT_EQ(run.copies[static_cast<int>(Way::kWrite)], 2u);
  EXPECT_EQ(run.steady_runs, 2u);
  EXPECT_EQ(run.steady_copies[static_cast<int>(Way::kWrite)], 4u);
  EXPECT_EQ(run.copies[static_cast<int>(Way::kRead)], 0u);
}

TEST(RunRecord, ARunWithoutEndIsNotKept) {
  RunRecorder recorder(1);
  recorder.begin_run("train", 0);
  for (int i = 0; i < 200'000; ++i) recorder.begin(i, 1, {});
  recorder.computing(200'000);
  recorder.end_run(300'000);
  const RunRecord run = recorder.last("train");
  EXPECT_TRUE(run.cut);
  EXPECT_TRUE(run.operators.empty());
  EXPECT_EQ(run.time(), 300'000);
  one_run(recorder, "train", 400'000);
  EXPECT_FALSE(recorder.last("train").cut);
}

// Two rounds over pages that do not fit, by a mover.
RunRecord two_rounds(MoverRig& rig, PageId pages) {
  for (PageId page = 0; page < pages; ++page) rig.fill(page, page + 1);
  for (int round = 0; round < 2; ++round) {
    rig.mover->begin_run("train");
    for (PageId page = 0; page < pages; ++page) {
      EXPECT_TRUE(rig.begin(page, {write_in(page)}));
      rig.mover->end(page);
    }
    rig.mover->end_run();
  }
  return rig.mover->last_run("train");
}

TEST(RunRecord, AMoverKeepsWhatItsRunsDid) {
  constexpr PageId kPages = 12;
  MoverRig rig({.pages = kPages, .device = 3, .host = 5, .disk = kPages});
  const RunRecord run = two_rounds(rig, kPages);
  EXPECT_EQ(run.number, 2u);
  EXPECT_FALSE(run.cut);
  EXPECT_EQ(run.operators.size(), 1 + 2u * kPages) << "the run's beginning, each use and its end";
  EXPECT_GT(run.time(), 0);
  EXPECT_GE(run.copies[static_cast<int>(Way::kRead)], kPages - 8u);
  std::vector<int> frames(3, 0);
  for (const std::uint8_t tiers : run.before) {
    for (const Tier tier : {Tier::kDevice, Tier::kHost, Tier::kDisk}) {
      frames[static_cast<std::size_t>(index_of(tier))] += (tiers & bit(tier)) != 0;
    }
  }
  const Capacities room = rig.mover->capacities();
  Time before = run.began;
  for (const RunRecord::Change& change : run.changes) {
    EXPECT_GE(change.at, before);
    before = change.at;
    int& used = frames[static_cast<std::size_t>(index_of(change.tier))];
    used += change.came ? 1 : -1;
    EXPECT_GE(used, 0);
    EXPECT_LE(used, static_cast<int>(room.of(change.tier)));
  }
  EXPECT_EQ(rig.mover->last_run("other").number, 0u);
}

TEST(RunRecord, EachWayAndWhoWaitsHaveARowInTheTimeline) {
  timeline::enable(true);
  {
    MoverRig rig({.pages = 12, .device = 3, .host = 5, .disk = 12});
    two_rounds(rig, 12);
  }
  timeline::enable(false);
  const std::string shown = timeline::chrome_json();
  for (const Way way : {Way::kUpload, Way::kDownload, Way::kRead, Way::kWrite}) {
    const std::string row = "\"tid\":\"pages, " + std::string(name_of(way)) + "\"";
    EXPECT_NE(shown.find(row), std::string::npos) << row;
  }
  EXPECT_NE(shown.find("\"tid\":\"waits for pages\""), std::string::npos);
  EXPECT_NE(shown.find("page 11"), std::string::npos) << "which page it was";
}

}  // namespace
}  // namespace taco::zerocache
