// Ranks as threads, each with a store of its own that has its own pages alone, and programs that
// use them all. The group fails a test whenever ranks call it in different ways.
#include "zerocache/ranks/zero3/gathered_pages.h"

#include <gtest/gtest.h>

#include <chrono>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "support/gathering_threads.h"
#include "support/mover_rig.h"
#include "support/moving_pages.h"

namespace taco::zerocache {
namespace {

using testing::GatheringThreads;
using testing::MoverRig;
using testing::MoverSizes;
using testing::MovingPages;
using testing::read_in;

std::vector<std::uint32_t> all_of(const Layout& layout) {
  std::vector<std::uint32_t> tensors(layout.tensors().size());
  std::iota(tensors.begin(), tensors.end(), 0);
  return tensors;
}

// With pages that really move.
class Rank {
 public:
  Rank(Collectives& ranks, const MoverSizes& sizes, std::size_t max_stripes)
      : rig_(sizes),
        stripes_(rig_.layout(), all_of(rig_.layout()), ranks.rank(), ranks.size()),
        lockstep_(ranks),
        gathered_(ranks, lockstep_, *rig_.mover, rig_.layout(), stripes_,
                  {.max_stripes = max_stripes}),
        pace_(static_cast<unsigned>(ranks.rank())) {}

  Status begin_run(const std::string& name) {
    rig_.mover->begin_run(name);
    return gathered_.begin_run(name);
  }
  // Owners set parameters, as a step does.
  void set_values(std::uint32_t version) {
    version_ = version;
    gathered_.release();
    for (PageId page = 0; page < rig_.layout().pages(); ++page) {
      if (stripes_.owns(page)) rig_.fill(page, value(page));
    }
  }
  // As a module does.
  Status begin(OperatorKey key, const std::vector<PageId>& pages) {
    std::this_thread::sleep_for(std::chrono::microseconds(pace_() % 100));
    TACO_RETURN_IF_ERROR(gathered_.begin(key, pages));
    std::vector<Access> accesses;
    for (const PageId page : pages) accesses.push_back(read_in(page));
    EXPECT_TRUE(rig_.begin(key, accesses));
    for (const PageId page : pages) {
      EXPECT_TRUE(rig_.holds(page, Tier::kDevice, value(page))) << "page " << page;
    }
    return {};
  }
  void end(OperatorKey key) {
    rig_.mover->end(key);
    gathered_.end(key);
  }
  Status use(OperatorKey key, const std::vector<PageId>& pages) {
    TACO_RETURN_IF_ERROR(begin(key, pages));
    end(key);
    return {};
  }
  // Forward and backward: each layer has one page.
  Status pass(const std::string& name = "train") {
    TACO_RETURN_IF_ERROR(begin_run(name));
    const PageId pages = rig_.layout().pages();
    for (PageId page = 0; page < pages; ++page) TACO_RETURN_IF_ERROR(use(page, {page}));
    for (PageId page = pages; page-- > 0;) TACO_RETURN_IF_ERROR(use(1000 + page, {page}));
    gathered_.end_run();
    return {};
  }
  void expect_only_own_pages() {
    EXPECT_EQ(gathered_.held(), 0u);
    for (PageId page = 0; page < rig_.layout().pages(); ++page) {
      EXPECT_EQ(rig_.mover->has_content(page), stripes_.owns(page)) << "page " << page;
    }
  }
  GatheredPages& gathered() { return gathered_; }
  Lockstep& lockstep() { return lockstep_; }

 private:
  std::uint32_t value(PageId page) const { return version_ * 1000 + page; }

  MoverRig rig_;
  Stripes stripes_;
  Lockstep lockstep_;
  GatheredPages gathered_;
  std::mt19937 pace_;
  std::uint32_t version_ = 0;
};

TEST(GatheredPages, EveryUseHasTheNewestBytesOfAllOwners) {
  for (const int size : {1, 2, 3, 5}) {
    SCOPED_TRACE("ranks: " + std::to_string(size));
    GatheringThreads group(size);
    group.run([&](Collectives& ranks) {
      // The last stripe is not whole.
      Rank rank(ranks, {.pages = 13, .device = 13, .host = 3, .disk = 20}, 2);
      for (std::uint32_t step = 0; step < 4; ++step) {
        rank.set_values(step);
        const Status status = rank.pass();
        ASSERT_TRUE(status.ok()) << status.message();
        rank.expect_only_own_pages();
      }
      EXPECT_GT(rank.gathered().stats().in_place, 0u);
      EXPECT_LT(rank.gathered().stats().in_place, rank.gathered().stats().gathered + (size == 1));
    });
  }
}

TEST(GatheredPages, WhatComesNextTravelsWhileOthersCompute) {
  GatheringThreads group(2);
  std::size_t calls = 0;
  group.run([&](Collectives& ranks) {
    Rank rank(ranks, {.pages = 16, .device = 16, .host = 16}, 4);
    rank.set_values(1);
    ASSERT_TRUE(rank.pass().ok());
    const GatherStats first = rank.gathered().stats();
    EXPECT_EQ(first.ahead, 0u) << "nothing is known yet";
    if (ranks.rank() == 0) calls = group.calls();
    ASSERT_TRUE(rank.pass().ok());
    const GatherStats second = rank.gathered().stats();
    const std::uint64_t gathered = second.gathered - first.gathered;
    EXPECT_EQ(second.ahead, gathered) << "none when it was needed";
    // Eight stripes each way, of which those at the turn are kept.
    EXPECT_GE(gathered, 12u);
    EXPECT_LE(gathered, 14u);
  });
  EXPECT_GE(group.max_open(), 2);
  EXPECT_LT(group.calls() - calls, calls) << "they were announced together";
}

TEST(GatheredPages, NoMoreIsHeldThanIsAllowedBesideWhatIsInUse) {
  GatheringThreads group(2);
  group.run([&](Collectives& ranks) {
    Rank rank(ranks, {.pages = 20, .device = 8, .host = 20}, 3);
    rank.set_values(1);
    for (int run = 0; run < 3; ++run) {
      ASSERT_TRUE(rank.begin_run("train").ok());
      EXPECT_LE(rank.gathered().held(), 3u);
      for (PageId page = 0; page < 18; page += 2) {
        ASSERT_TRUE(rank.begin(page, {page, page + 1}).ok());
        EXPECT_LE(rank.gathered().held(), 3u);
        ASSERT_TRUE(rank.begin(100 + page, {page + 2, page + 3}).ok()) << "one inside the other";
        EXPECT_LE(rank.gathered().held(), 3u);
        rank.end(100 + page);
        rank.end(page);
      }
      rank.gathered().end_run();
    }
    rank.expect_only_own_pages();
  });
}

TEST(GatheredPages, ARankThatTakesAnotherWayIsReportedOnAllAndTheNextRunIsWhole) {
  for (const int at_run : {0, 2}) {
    GatheringThreads group(3);
    group.run([&](Collectives& ranks) {
      Rank rank(ranks, {.pages = 12, .device = 12, .host = 12}, 2);
      for (int run = 0; run < 5; ++run) {
        rank.set_values(static_cast<std::uint32_t>(run));
        ASSERT_TRUE(rank.begin_run("train").ok());
        Status status;
        for (PageId page = 0; page < 12 && status.ok(); ++page) {
          const bool other = run == at_run && ranks.rank() == 1 && page == 6;
          status = other ? rank.use(500, {9}) : rank.use(page, {page});
        }
        EXPECT_EQ(status.code(), run == at_run ? Code::kMismatch : Code::kOk);
        if (run == at_run) {
          EXPECT_NE(status.message().find("uses and gradients of run 'train'"), std::string::npos)
              << status.message();
          EXPECT_EQ(rank.use(3, {3}).code(), Code::kMismatch) << "the run is over";
        }
        rank.gathered().end_run();
        rank.expect_only_own_pages();
      }
    });
  }
}

TEST(GatheredPages, ARankThatGivesUpEndsTheRunForAll) {
  for (const int runs_before : {0, 2}) {
    GatheringThreads group(2);
    group.run([&](Collectives& ranks) {
      Rank rank(ranks, {.pages = 12, .device = 12, .host = 12}, 2);
      rank.set_values(1);
      for (int run = 0; run < runs_before; ++run) ASSERT_TRUE(rank.pass().ok());
      ASSERT_TRUE(rank.begin_run("train").ok());
      Status status;
      for (PageId page = 0; page < 12 && status.ok(); ++page) {
        if (ranks.rank() == 1 && page == 5) {
          rank.lockstep().give_up(Status(Code::kAborted, "ValueError: too long"));
          break;
        }
        status = rank.use(page, {page});
      }
      if (ranks.rank() == 0) {
        EXPECT_EQ(status.message(), "rank 1: ValueError: too long");
      }
      ASSERT_TRUE(rank.pass().ok()) << "the next run is as any other";
      rank.expect_only_own_pages();
    });
  }
}

// With pages that lie anywhere, and are missing when a test wants that.
struct Scattered {
  static constexpr std::size_t kPage = 4096;
  Layout layout;
  MovingPages pages{kPage};
  Stripes stripes;
  Lockstep lockstep;
  GatheredPages gathered;

  static Layout layout_of(PageId pages) {
    std::vector<TensorSpec> tensors;
    for (PageId page = 0; page < pages; ++page) {
      tensors.push_back({"layer" + std::to_string(page), kPage, 4});
    }
    return std::move(Layout::make(tensors, kPage)).value();
  }
  Scattered(Collectives& ranks, PageId count, std::size_t max_stripes)
      : layout(layout_of(count)),
        stripes(layout, all_of(layout), ranks.rank(), ranks.size()),
        lockstep(ranks),
        gathered(ranks, lockstep, pages, layout, stripes, {.max_stripes = max_stripes}) {
    for (PageId page = 0; page < count; ++page) {
      const std::vector<std::byte> bytes(kPage, static_cast<std::byte>(page + 1));
      if (stripes.owns(page)) pages.write(layout.tensors()[page], bytes.data());
    }
  }
  Status use(PageId page) {
    const PageId needed[] = {page};
    TACO_RETURN_IF_ERROR(gathered.begin(page, needed));
    const std::byte* const at = pages.address(page, Tier::kDevice);
    for (std::size_t i = 0; i < kPage; ++i) EXPECT_EQ(at[i], static_cast<std::byte>(page + 1));
    gathered.end(page);
    return {};
  }
};

TEST(GatheredPages, PagesThatLieAnywhereAreGatheredToo) {
  GatheringThreads group(3);
  group.run([&](Collectives& ranks) {
    Scattered rank(ranks, 10, 2);
    for (int run = 0; run < 3; ++run) {
      ASSERT_TRUE(rank.gathered.begin_run("train").ok());
      for (PageId page = 0; page < 10; ++page) ASSERT_TRUE(rank.use(page).ok());
      rank.gathered.end_run();
      EXPECT_EQ(rank.pages.open(), 0u);
    }
    EXPECT_EQ(rank.gathered.stats().in_place, 0u);
  });
}

TEST(GatheredPages, APageThatOneRankCannotHaveIsAFailureOfAllWhereItIsNeeded) {
  for (const int runs_before : {0, 2}) {
    GatheringThreads group(3);
    group.run([&](Collectives& ranks) {
      Scattered rank(ranks, 12, 2);
      for (int run = 0; run < runs_before; ++run) {
        ASSERT_TRUE(rank.gathered.begin_run("train").ok());
        for (PageId page = 0; page < 12; ++page) ASSERT_TRUE(rank.use(page).ok());
      }
      ASSERT_TRUE(rank.gathered.begin_run("train").ok());
      int failures = 0;
      if (ranks.rank() == 2) rank.pages.fail_at(runs_before == 0 ? 1 : 0);
      for (PageId page = 0; page < 12; ++page) {
        const Status status = rank.use(page);
        if (status.ok()) continue;
        ++failures;
        EXPECT_EQ(status.message(), ranks.rank() == 2 ? "no page today" : "rank 2: no page today");
        EXPECT_TRUE(rank.use(page).ok()) << "it can be tried again";
      }
      // Stripes that were to be gathered ahead are gathered when they are needed.
      EXPECT_EQ(failures, runs_before == 0 ? 1 : 0);
      rank.gathered.end_run();
      EXPECT_EQ(rank.pages.open(), 0u);
    });
  }
}

TEST(GatheredPages, AGroupThatFailsEndsItWithoutHarm) {
  for (std::size_t at = 0; at < 40; at += 3) {
    GatheringThreads group(2);
    group.fail_at(at);
    group.run([&](Collectives& ranks) {
      Scattered rank(ranks, 12, 3);
      Status status;
      for (int run = 0; run < 4 && status.ok(); ++run) {
        status = rank.gathered.begin_run("train");
        for (PageId page = 0; page < 12 && status.ok(); ++page) status = rank.use(page);
      }
      EXPECT_EQ(status.code(), Code::kPeerLost);
      rank.gathered.end_run();
      EXPECT_EQ(rank.pages.open(), 0u);
      EXPECT_EQ(rank.gathered.begin_run("train").code(), Code::kPeerLost);
    });
  }
}

// A use that is open goes on with what it has; the next one has what owners have made of it.
TEST(GatheredPages, AStripeThatIsReleasedIsGatheredAnew) {
  GatheringThreads group(2);
  group.run([&](Collectives& ranks) {
    Scattered rank(ranks, 4, 4);
    for (int run = 0; run < 2; ++run) {
      ASSERT_TRUE(rank.gathered.begin_run("train").ok());
      for (PageId page = 0; page < 4; ++page) ASSERT_TRUE(rank.use(page).ok());
    }
    ASSERT_TRUE(rank.gathered.begin_run("train").ok());
    const PageId needed[] = {0};
    ASSERT_TRUE(rank.gathered.begin(0, needed).ok());
    const std::uint64_t before = rank.gathered.stats().gathered;
    rank.gathered.release(0);
    EXPECT_EQ(rank.pages.address(1, Tier::kDevice)[5], static_cast<std::byte>(2));
    rank.gathered.end(0);
    ASSERT_TRUE(rank.use(1).ok());
    EXPECT_EQ(rank.gathered.stats().gathered, before + 1);
  });
}

// Programs that take this way or that, the same on all ranks, over pages that really move.
TEST(GatheredPages, RandomProgramsFindWhatTheyNeed) {
  for (std::uint32_t seed = 0; seed < 12; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const int size = 1 + static_cast<int>(seed % 4);
    GatheringThreads group(size);
    group.run([&](Collectives& ranks) {
      std::mt19937 random(seed);
      const std::size_t most = 1 + random() % 4;
      const auto device = static_cast<std::uint32_t>((most + 2) * static_cast<std::size_t>(size));
      Rank rank(ranks, {.pages = 17, .device = device, .host = 4, .disk = 20}, most);
      for (std::uint32_t run = 0; run < 6; ++run) {
        rank.set_values(run);
        ASSERT_TRUE(rank.begin_run(random() % 4 == 0 ? "eval" : "train").ok());
        for (PageId page = 0; page + 1 < 17; ++page) {
          if (random() % 6 == 0) page = random() % 16;
          const bool wide = random() % 2 == 0;
          std::vector<PageId> pages = {page};
          if (wide) pages.push_back(page + 1);
          ASSERT_TRUE(rank.use(page + (wide ? 100 : 0), pages).ok());
        }
        rank.gathered().end_run();
        rank.expect_only_own_pages();
      }
    });
  }
}

}  // namespace
}  // namespace taco::zerocache
