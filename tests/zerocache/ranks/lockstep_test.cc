// Ranks that say what they are about to do. The group of these tests fails a test whenever ranks
// make calls of different kinds or lengths: so none of these deviations reaches it.
#include "zerocache/ranks/lockstep.h"

#include <gtest/gtest.h>

#include <chrono>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "support/gathering_threads.h"

namespace taco::zerocache {
namespace {

using testing::GatheringThreads;

// An exchange of so many bytes, of which nothing is wanted but that ranks take part.
struct Exchange {
  std::vector<std::byte> own, all;
  std::unique_ptr<Collectives::Work> work;
  int dropped = 0;

  Intent intent(Collectives& ranks, std::uint64_t bytes, Status can = {}) {
    own.resize(bytes);
    all.resize(bytes * static_cast<std::size_t>(ranks.size()));
    return {.what = "exchange " + std::to_string(bytes),
            .digest = bytes,
            .own = std::move(can),
            .start = [this, &ranks]() -> Status {
              auto begun = ranks.all_gather(own, all);
              if (!begun.ok()) return begun.status();
              work = std::move(begun).value();
              return {};
            },
            .drop = [this](const Status&) { ++dropped; }};
  }
  bool begun() const { return work != nullptr; }
};

TEST(Lockstep, WhatAllAnnounceBeginsWhenItIsWaitedForOrTheNextIsAnnounced) {
  GatheringThreads group(3);
  group.run([&](Collectives& ranks) {
    Lockstep lockstep(ranks);
    EXPECT_TRUE(lockstep.wait().ok()) << "nothing is announced";
    EXPECT_TRUE(lockstep.begin_run("train").ok());
    Exchange first, second;
    lockstep.announce(first.intent(ranks, 100));
    EXPECT_FALSE(first.begun());
    lockstep.announce(second.intent(ranks, 7));
    EXPECT_TRUE(first.begun());
    EXPECT_FALSE(second.begun());
    EXPECT_TRUE(lockstep.wait().ok());
    EXPECT_TRUE(second.begun());
    EXPECT_TRUE(first.work->wait().ok());
    EXPECT_TRUE(second.work->wait().ok());
    EXPECT_TRUE(lockstep.barrier("save", {}).ok());
    EXPECT_EQ(lockstep.endings(), 0u);
  });
}

TEST(Lockstep, RanksThatAreAboutToDoDifferentThingsAllHearOfBoth) {
  GatheringThreads group(3);
  group.run([&](Collectives& ranks) {
    Lockstep lockstep(ranks);
    ASSERT_TRUE(lockstep.begin_run("train").ok());
    Exchange exchange, later;
    lockstep.note(1);
    lockstep.announce(exchange.intent(ranks, ranks.rank() == 2 ? 50 : 40));
    const Status status = lockstep.wait();
    EXPECT_EQ(status.code(), Code::kMismatch);
    EXPECT_NE(status.message().find("rank 0 is about to exchange 40 (after 1 uses"),
              std::string::npos)
        << status.message();
    EXPECT_NE(status.message().find("rank 2 to exchange 50 (after 1 uses"), std::string::npos)
        << status.message();
    EXPECT_FALSE(exchange.begun());
    EXPECT_EQ(exchange.dropped, 1);
    // The run is over, however differently they go on.
    for (int i = 0; i < ranks.rank(); ++i) lockstep.announce(later.intent(ranks, 9));
    EXPECT_EQ(later.dropped, ranks.rank());
    EXPECT_EQ(lockstep.wait().code(), Code::kMismatch);
    EXPECT_EQ(lockstep.endings(), 1u);
    // The next is not.
    ASSERT_TRUE(lockstep.begin_run("train").ok());
    EXPECT_TRUE(lockstep.barrier("step", {}).ok());
  });
}

TEST(Lockstep, RanksThatCameByDifferentWaysAreFoundOutAtTheNextAnnouncement) {
  GatheringThreads group(2);
  group.run([&](Collectives& ranks) {
    Lockstep lockstep(ranks);
    ASSERT_TRUE(lockstep.begin_run("train").ok());
    lockstep.note(5);
    if (ranks.rank() == 1) lockstep.note(6);
    const Status status = lockstep.barrier("step", {});
    EXPECT_EQ(status.code(), Code::kMismatch);
    EXPECT_NE(status.message().find("rank 1 to step (after 2 uses and gradients of run 'train')"),
              std::string::npos)
        << status.message();
  });
  // Another order, another run.
  GatheringThreads others(2);
  others.run([&](Collectives& ranks) {
    Lockstep lockstep(ranks);
    ASSERT_TRUE(lockstep.begin_run("train").ok());
    for (const int event : {1, 2}) lockstep.note(ranks.rank() == 0 ? event : 3 - event);
    EXPECT_EQ(lockstep.barrier("step", {}).code(), Code::kMismatch);
    ASSERT_TRUE(lockstep.begin_run(ranks.rank() == 0 ? "train" : "eval").ok());
    EXPECT_EQ(lockstep.barrier("step", {}).code(), Code::kMismatch);
  });
}

TEST(Lockstep, WhatOneRankCannotDoNoneDoesAndTheRunGoesOn) {
  GatheringThreads group(3);
  group.run([&](Collectives& ranks) {
    Lockstep lockstep(ranks);
    ASSERT_TRUE(lockstep.begin_run("train").ok());
    Exchange exchange;
    lockstep.announce(
        exchange.intent(ranks, 8, ranks.rank() == 1 ? Status(Code::kResource, "EIO") : Status()));
    const Status status = lockstep.wait();
    EXPECT_EQ(status.code(), Code::kResource);
    EXPECT_EQ(status.message(), ranks.rank() == 1 ? "EIO" : "rank 1: EIO");
    EXPECT_EQ(exchange.dropped, 1);
    EXPECT_TRUE(lockstep.ended().ok());
    EXPECT_TRUE(lockstep.barrier("step", {}).ok());
  });
}

TEST(Lockstep, ARankThatGivesUpHasAllHearOfItInsteadOfWaiting) {
  GatheringThreads group(3);
  group.run([&](Collectives& ranks) {
    Lockstep lockstep(ranks);
    ASSERT_TRUE(lockstep.begin_run("train").ok());
    Exchange before, next;
    lockstep.announce(before.intent(ranks, 100));
    if (ranks.rank() == 1) {
      lockstep.give_up(Status(Code::kAborted, "KeyError: 'labels'"));
    } else {
      lockstep.note(1);
      lockstep.announce(next.intent(ranks, 5));
      const Status status = lockstep.wait();
      EXPECT_EQ(status.message(), "rank 1: KeyError: 'labels'");
      EXPECT_EQ(next.dropped, 1);
      EXPECT_EQ(lockstep.ended().code(), Code::kAborted);
    }
    EXPECT_TRUE(before.begun()) << "all had announced it";
    EXPECT_TRUE(before.work->wait().ok());
    ASSERT_TRUE(lockstep.begin_run("train").ok());
    EXPECT_TRUE(lockstep.barrier("step", {}).ok());
    EXPECT_EQ(lockstep.endings(), 1u);
  });
}

TEST(Lockstep, AGroupThatFailsStaysFailed) {
  for (std::size_t at = 0; at < 4; ++at) {
    GatheringThreads group(2);
    group.fail_at(at);
    group.run([&](Collectives& ranks) {
      Lockstep lockstep(ranks);
      ASSERT_TRUE(lockstep.begin_run("train").ok());
      Exchange exchanges[3];
      for (Exchange& exchange : exchanges) lockstep.announce(exchange.intent(ranks, 10));
      EXPECT_EQ(lockstep.wait().code(), Code::kPeerLost);
      int dropped = 0;
      for (const Exchange& exchange : exchanges) dropped += exchange.dropped;
      EXPECT_EQ(dropped, 3 - static_cast<int>(at / 2));
      EXPECT_EQ(lockstep.begin_run("train").code(), Code::kPeerLost);
    });
  }
}

// Programs of random announcements, some of which part somewhere: all ranks end the run with a
// failure, or none does, and the group sees the same calls from all of them.
TEST(Lockstep, RandomProgramsThatPartAllFail) {
  for (std::uint32_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const int size = 2 + static_cast<int>(seed % 3);
    const std::size_t parts = seed % 4 == 0 ? 1000 : seed % 9;  // at this step
    GatheringThreads group(size);
    group.run([&](Collectives& ranks) {
      std::mt19937 program(seed), pace(seed * 31 + static_cast<std::uint32_t>(ranks.rank()));
      Lockstep lockstep(ranks);
      ASSERT_TRUE(lockstep.begin_run("train").ok());
      std::vector<Exchange> exchanges(12);
      for (std::size_t i = 0; i < exchanges.size(); ++i) {
        const std::uint64_t bytes = 1 + program() % 100;
        const bool other = i == parts && ranks.rank() == size - 1;
        std::this_thread::sleep_for(std::chrono::microseconds(pace() % 200));
        if (program() % 3 == 0) lockstep.note(other ? 77 : i);
        lockstep.announce(exchanges[i].intent(ranks, other ? bytes + 1 : bytes));
        if (program() % 3 == 0) static_cast<void>(lockstep.wait());
      }
      const Status status = lockstep.wait();
      EXPECT_EQ(status.code(), parts == 1000 ? Code::kOk : Code::kMismatch) << status.message();
      for (std::size_t i = 0; i < exchanges.size(); ++i) {
        EXPECT_EQ(exchanges[i].begun(), i < parts) << i;
      }
    });
  }
}

}  // namespace
}  // namespace taco::zerocache
