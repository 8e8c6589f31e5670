// Random programs over real tiers: whatever is evicted, fetched or fails on the way, a page holds
// what was written last.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "support/faulty_files.h"
#include "support/mover_programs.h"
#include "support/mover_rig.h"

namespace taco::zerocache {
namespace {

using testing::FaultyFiles;
using testing::FileCall;
using testing::MoverRig;
using testing::MoverSizes;
using testing::ProgramLimits;
using testing::RandomProgram;

constexpr std::uint64_t kSeeds = 24;

// Tiers that hold the pages, and hardly more than that.
MoverSizes draw_sizes(std::mt19937_64& draw, std::size_t threads) {
  MoverSizes sizes;
  const auto each = static_cast<std::uint32_t>(threads);
  sizes.page_bytes = std::size_t{4096} << (draw() % 5);
  sizes.device = draw() % 5 == 0 ? 0 : each * (3 + static_cast<std::uint32_t>(draw() % 4));
  sizes.host = 2 + each * (3 + static_cast<std::uint32_t>(draw() % 4));
  sizes.disk = draw() % 4 == 0 ? 0 : 6 + static_cast<std::uint32_t>(draw() % 24);
  sizes.directories = 1 + static_cast<int>(draw() % 2);
  sizes.disk -= sizes.disk % static_cast<std::uint32_t>(sizes.directories);
  sizes.pages = sizes.device + sizes.host + sizes.disk - (sizes.device > 0 ? 2 : 1);
  sizes.engine = draw() % 2 == 0 ? IoOptions::Engine::kAuto : IoOptions::Engine::kThreads;
  return sizes;
}

ProgramLimits limits_of(const MoverSizes& sizes, std::size_t threads, std::size_t thread) {
  ProgramLimits limits;
  limits.pages = sizes.pages / static_cast<PageId>(threads);
  limits.first = static_cast<PageId>(thread) * limits.pages;
  limits.device = sizes.device / threads;
  limits.host = (sizes.host - (sizes.device > 0 ? 2 : 0)) / threads;
  limits.key = thread << 32;
  return limits;
}

void expect_within_caps(const MoverRig& rig, const MoverSizes& sizes) {
  const MoverStats stats = rig.mover->stats();
  const std::uint32_t caps[] = {sizes.device, sizes.host, sizes.disk};
  for (std::size_t tier = 0; tier < kTiers; ++tier) {
    EXPECT_EQ(stats.tiers[tier].capacity, caps[tier]);
    EXPECT_LE(stats.tiers[tier].resident, caps[tier]);
  }
  if (rig.device != nullptr) {
    EXPECT_LE(rig.device->usage().frames, sizes.device);
  }
}

TEST(MoverRandom, PagesHoldWhatWasWrittenLast) {
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 draw(seed);
    MoverSizes sizes = draw_sizes(draw, 1);
    std::atomic<std::uint32_t> turn{0};
    if (seed % 2 == 0) {
      sizes.before_each = [&turn] { usleep(++turn * 2654435761u >> 25); };
    }
    MoverRig rig(sizes);
    RandomProgram program(rig, limits_of(sizes, 1, 0), seed);
    for (int run = 0; run < 5; ++run) {
      if (seed % 3 != 0) rig.mover->begin_run(run == 3 ? "eval" : "train");
      program.run(60, run < 2 ? 0 : 10);
      if (HasFatalFailure()) return;
      expect_within_caps(rig, sizes);
      if (seed % 3 == 1) rig.mover->end_run();
    }
  }
}

TEST(MoverRandom, ThreadsUsePagesBesideEachOther) {
  constexpr std::size_t kThreads = 2;
  for (std::uint64_t seed = 1; seed <= kSeeds / 2; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 draw(seed);
    const MoverSizes sizes = draw_sizes(draw, kThreads);
    MoverRig rig(sizes);
    std::vector<std::thread> threads;
    for (std::size_t thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([&, thread] {
        RandomProgram program(rig, limits_of(sizes, kThreads, thread), 100 * seed + thread);
        for (int run = 0; run < 3; ++run) {
          if (thread == 0) rig.mover->begin_run("train");
          program.run(60, 10);
          if (HasFatalFailure()) return;
          if (thread == 0 && seed % 2 == 0) rig.mover->end_run();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    if (HasFatalFailure()) return;
    expect_within_caps(rig, sizes);
  }
}

// A disk of which a call in eight fails.
TEST(MoverRandom, AnUnreliableDiskLosesNothing) {
  std::uint64_t failures = 0;
  for (std::uint64_t seed = 1; seed <= kSeeds / 2; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 draw(seed);
    MoverSizes sizes = draw_sizes(draw, 1);
    while (sizes.disk == 0) sizes = draw_sizes(draw, 1);
    std::atomic<std::uint32_t> calls{0};
    std::atomic<bool> failing{false};
    FaultyFiles files([&](const FileCall& call) -> ssize_t {
      const bool moves = call.kind == FileCall::Kind::kRead || call.kind == FileCall::Kind::kWrite;
      if (!moves || !failing) return 0;
      return (++calls * 2654435761u) >> 29 == 0 ? -EIO : 0;
    });
    MoverRig rig(sizes, files);
    failing = true;
    ProgramLimits limits = limits_of(sizes, 1, 0);
    limits.retry = [](const Status& status) {
      return status.message().find("Input/output error") != std::string::npos;
    };
    RandomProgram program(rig, limits, seed);
    for (int run = 0; run < 4; ++run) {
      rig.mover->begin_run("train");
      program.run(60, 10);
      if (HasFatalFailure()) return;
    }
    const MoverStats stats = rig.mover->stats();
    for (const WayStats& way : stats.ways) failures += way.failed;
  }
  EXPECT_GT(failures, 0u);
}

}  // namespace
}  // namespace taco::zerocache
