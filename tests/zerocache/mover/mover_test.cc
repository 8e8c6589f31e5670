#include "zerocache/mover/mover.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "support/eventually.h"
#include "support/faulty_files.h"
#include "support/mover_rig.h"
#include "support/processes.h"
#include "support/reachable.h"

namespace taco::zerocache {
namespace {

using testing::count_descriptors;
using testing::count_threads;
using testing::eventually;
using testing::FaultyFiles;
using testing::FileCall;
using testing::MoverRig;
using testing::MoverSizes;
using testing::read_in;
using testing::thread_names;
using testing::write_in;

const WayStats& of(const MoverStats& stats, Way way) {
  return stats.ways[static_cast<std::size_t>(way)];
}

TEST(Mover, PagesAreWhereTheyAreNeededAndHoldWhatWasWritten) {
  MoverRig rig({.pages = 8, .device = 3, .host = 8});
  for (PageId page = 0; page < 8; ++page) rig.fill(page, page + 1);
  for (int round = 0; round < 3; ++round) {
    for (PageId page = 0; page < 8; ++page) {
      ASSERT_TRUE(rig.begin(page, {read_in(page)}));
      EXPECT_TRUE(rig.holds(page, Tier::kDevice, page + 1));
      rig.mover->end(page);
    }
  }
  const MoverStats stats = rig.mover->stats();
  EXPECT_LE(stats.tiers[0].resident, 3u);
  EXPECT_EQ(stats.uses, 8u + 24u);
  EXPECT_GE(of(stats, Way::kUpload).copies, 8u);
  EXPECT_EQ(of(stats, Way::kUpload).bytes, of(stats, Way::kUpload).copies * 4096);
  EXPECT_EQ(of(stats, Way::kDownload).copies, 0u) << "nothing was written on the device";
}

TEST(Mover, WhatIsOnlyReadIsWrittenToTheDiskOnce) {
  MoverRig rig({.pages = 16, .device = 3, .host = 5, .disk = 16});
  for (PageId page = 0; page < 16; ++page) rig.fill(page, page + 1);
  for (int run = 0; run < 6; ++run) {
    rig.mover->begin_run("eval");
    for (PageId page = 0; page < 16; ++page) {
      ASSERT_TRUE(rig.begin(page, {read_in(page)}));
      ASSERT_TRUE(rig.holds(page, Tier::kDevice, page + 1));
      rig.mover->end(page);
    }
    rig.mover->end_run();
  }
  // When a page is written first depends on which stay in memory, and that on time.
  EXPECT_LE(of(rig.mover->stats(), Way::kWrite).copies, 16u);
  EXPECT_GT(of(rig.mover->stats(), Way::kRead).copies, 16u);
}

// A pointer that was kept from an earlier use may be followed at any time.
TEST(Mover, APageOnItsWayIsSeenByNobodyBeforeItIsThere) {
  auto memory = device::HostMemory::create({.frame_bytes = 4096, .max_frames = 1});
  ASSERT_TRUE(memory.ok());
  if (!(*memory)->moves()) GTEST_SKIP() << "this kernel does not move memory";
  std::atomic<bool> held{false}, copying{false};
  const auto hold = [&] {
    copying = true;
    held.wait(true);
  };
  MoverRig rig({.pages = 4, .device = 1, .host = 4, .before_each = hold});
  rig.fill(0, 1);
  testing::Prober prober;
  const std::byte* const address = rig.mover->address(0, Tier::kDevice);
  held = true;
  std::thread user([&] {
    EXPECT_TRUE(rig.begin(7, {read_in(0)}));
    EXPECT_TRUE(rig.holds(0, Tier::kDevice, 1));
    rig.mover->end(7);
  });
  EXPECT_TRUE(eventually([&] { return copying.load(); }));
  EXPECT_FALSE(prober.readable(address));
  held = false;
  held.notify_all();
  user.join();
  EXPECT_TRUE(prober.readable(address));
}

TEST(Mover, UsesNestAndWhatIsOpenStaysWhereItIs) {
  MoverRig rig({.pages = 12, .device = 3, .host = 12});
  for (PageId page = 0; page < 12; ++page) rig.fill(page, page + 1);
  ASSERT_TRUE(rig.begin(100, {write_in(0)}));
  rig.write(0, Tier::kDevice, 50);
  for (PageId page = 1; page < 12; ++page) {
    ASSERT_TRUE(rig.begin(page, {read_in(page)}));
    EXPECT_TRUE(rig.holds(page, Tier::kDevice, page + 1));
    EXPECT_TRUE(rig.holds(0, Tier::kDevice, 50));
    rig.mover->end(page);
  }
  rig.mover->begin_run("another");  // runs come and go meanwhile
  EXPECT_TRUE(rig.holds(0, Tier::kDevice, 50));
  rig.mover->end_run();
  for (PageId page = 1; page < 12; ++page) {
    ASSERT_TRUE(rig.begin(page, {read_in(page)}));
    rig.mover->end(page);
  }
  EXPECT_TRUE(rig.holds(0, Tier::kDevice, 50));
  rig.mover->end(100);
  ASSERT_TRUE(rig.begin(7, {read_in(0, Tier::kHost)}));
  EXPECT_TRUE(rig.holds(0, Tier::kHost, 50)) << "the other copy is not the one before";
  rig.mover->end(7);
}

TEST(Mover, WhatMayBeAnywhereStaysWhereItIs) {
  MoverRig rig({.pages = 8, .device = 2, .host = 4, .disk = 8});
  for (PageId page = 0; page < 8; ++page) rig.fill(page, page + 1);
  const auto anywhere = [](PageId page) { return access_in(std::nullopt, page, true, true); };
  // On the device, because it is there; and one that is not, in host memory.
  ASSERT_TRUE(rig.begin(1, {read_in(5)}));
  rig.mover->end(1);
  const PageId elsewhere = 3;  // the first that the host had no room for went to the device
  const auto uploads = [&] {
    return rig.mover->stats().ways[static_cast<std::size_t>(Way::kUpload)].copies;
  };
  const std::uint64_t before = uploads();
  ASSERT_TRUE(rig.begin(2, {anywhere(5), anywhere(elsewhere)}));
  EXPECT_EQ(rig.mover->tier_of(5), Tier::kDevice);
  EXPECT_EQ(rig.mover->tier_of(elsewhere), Tier::kHost);
  rig.mover->end(2);
  EXPECT_EQ(uploads(), before);
  // Where another use has it; and on the device where host memory has no room for one more.
  ASSERT_TRUE(rig.begin(3, {read_in(6), read_in(7, Tier::kHost), read_in(1, Tier::kHost)}));
  ASSERT_TRUE(rig.begin(4, {anywhere(6), anywhere(2)}));
  EXPECT_EQ(rig.mover->tier_of(6), Tier::kDevice);
  EXPECT_EQ(rig.mover->tier_of(2), Tier::kDevice);
  rig.mover->end(4);
  rig.mover->end(3);
}

TEST(Mover, WhatNobodyNeedsAfterwardsIsGivenUp) {
  MoverRig rig({.pages = 4, .device = 2, .host = 4});
  rig.fill(1, 5);
  EXPECT_TRUE(rig.mover->has_content(1));
  EXPECT_FALSE(rig.mover->has_content(2));
  ASSERT_TRUE(rig.begin(1, {{1, Tier::kDevice, true, false, true}}));
  EXPECT_TRUE(rig.holds(1, Tier::kDevice, 5));
  EXPECT_TRUE(rig.mover->has_content(1));
  rig.mover->end(1);
  EXPECT_FALSE(rig.mover->has_content(1));
  EXPECT_FALSE(rig.mover->has_content(4)) << "there is no such page";
  EXPECT_FALSE(rig.mover->has_content(kNoPage));
}

TEST(Mover, WhatIsDiscardedMakesRoomThoughNothingCouldMove) {
  MoverRig rig({.pages = 8, .device = 2, .host = 3, .disk = 2});
  for (PageId page = 0; page < 5; ++page) rig.fill(page, page + 1);
  const std::vector<PageId> gone = {0, 3, 7};  // the last never held anything
  rig.mover->discard(gone);
  EXPECT_FALSE(rig.mover->has_content(0));
  EXPECT_FALSE(rig.mover->has_content(3));
  for (PageId page = 5; page < 7; ++page) rig.fill(page, page + 1);
  for (const PageId page : {1, 2, 4, 5, 6}) {
    ASSERT_TRUE(rig.begin(page, {read_in(page)}));
    EXPECT_TRUE(rig.holds(page, Tier::kDevice, page + 1));
    rig.mover->end(page);
  }
  rig.mover->discard({});
}

TEST(Mover, WhatDoesNotFitIsRefusedAndNothingElseSuffers) {
  MoverRig rig({.pages = 12, .device = 3, .host = 12});
  for (PageId page = 0; page < 12; ++page) rig.fill(page, page + 1);
  ASSERT_TRUE(rig.begin(1, {read_in(0), read_in(1)}));
  const std::vector<Access> more = {read_in(2), read_in(3)};
  const Status refused = rig.mover->begin(2, more);
  EXPECT_EQ(refused.code(), Code::kInvalidArgument);
  EXPECT_NE(refused.message().find("device memory holds 3 pages"), std::string::npos)
      << refused.message();
  EXPECT_NE(refused.message().find("4 pages"), std::string::npos) << refused.message();
  EXPECT_TRUE(rig.holds(0, Tier::kDevice, 1));
  ASSERT_TRUE(rig.begin(2, {read_in(2)}));
  EXPECT_TRUE(rig.holds(1, Tier::kDevice, 2));
  rig.mover->end(2);
  rig.mover->end(1);
  const std::vector<Access> none = {read_in(12)};
  EXPECT_NE(rig.mover->begin(3, none).message().find("page 12 of a store of at most 12"),
            std::string::npos);
}

TEST(Mover, APageIsNotWrittenInOneMemoryAndUsedInTheOther) {
  MoverRig rig({.pages = 4, .device = 2, .host = 6});
  rig.fill(0, 1);
  ASSERT_TRUE(rig.begin(1, {read_in(0)}));
  ASSERT_TRUE(rig.begin(2, {read_in(0, Tier::kHost)}));
  EXPECT_TRUE(rig.holds(0, Tier::kDevice, 1));
  EXPECT_TRUE(rig.holds(0, Tier::kHost, 1));
  rig.mover->end(2);
  const std::vector<Access> writes = {write_in(0, Tier::kHost)};
  EXPECT_EQ(rig.mover->begin(2, writes).code(), Code::kInvalidArgument);
  rig.mover->end(1);
  ASSERT_TRUE(rig.begin(2, writes));
  rig.mover->end(2);
}

// A store with room for two pages in memory, the rest on a disk that fails when it is told to.
class FailingDisk {
 public:
  explicit FailingDisk(std::uint32_t device = 0)
      : rig{{.pages = 6, .device = device, .host = device > 0 ? 3u : 2u, .disk = 6}, files_} {
    for (PageId page = 0; page < 6; ++page) rig.fill(page, page + 1);
  }
  // How many of the next reads, or writes, fail.
  std::atomic<int> reads{0}, writes{0};

 private:
  FaultyFiles files_{[this](const FileCall& call) -> ssize_t {
    if (call.kind == FileCall::Kind::kRead && reads > 0 && reads-- > 0) return -EIO;
    if (call.kind == FileCall::Kind::kWrite && writes > 0 && writes-- > 0) return -ENOSPC;
    return 0;
  }};

 public:
  MoverRig rig;
};

TEST(Mover, ADiskThatFailsOnceIsAskedAgain) {
  FailingDisk disk;
  for (PageId page = 0; page < 6; ++page) {
    disk.reads = 1;
    ASSERT_TRUE(disk.rig.begin(page, {write_in(page, Tier::kHost)}));
    EXPECT_TRUE(disk.rig.holds(page, Tier::kHost, page + 1));
    disk.writes = 1;
    disk.rig.mover->end(page);
  }
  EXPECT_GE(of(disk.rig.mover->stats(), Way::kRead).failed, 4u);
}

TEST(Mover, ADiskThatGoesOnFailingFailsTheUseAndNoMore) {
  FailingDisk disk;
  MoverRig& rig = disk.rig;
  ASSERT_TRUE(rig.begin(1, {read_in(5, Tier::kHost)}));
  disk.reads = 1000;
  const std::vector<Access> use = {read_in(0, Tier::kHost)};
  const Status failed = rig.mover->begin(2, use);
  EXPECT_EQ(failed.code(), Code::kResource);
  EXPECT_EQ(failed.message().find("page 0 (layer0): reading 4096 bytes at "), 0u)
      << failed.message();
  EXPECT_NE(failed.message().find(rig.directory()), std::string::npos) << failed.message();
  EXPECT_NE(failed.message().find("Input/output error"), std::string::npos) << failed.message();
  EXPECT_EQ(of(rig.mover->stats(), Way::kRead).failed, 4u) << "tried again three times";
  EXPECT_TRUE(rig.holds(5, Tier::kHost, 6)) << "what is in use has stayed";
  disk.reads = 0;
  ASSERT_TRUE(rig.begin(2, use));
  EXPECT_TRUE(rig.holds(0, Tier::kHost, 1));
  rig.mover->end(2);
  rig.mover->end(1);
}

TEST(Mover, ADiskThatTakesNothingMoreLosesNothing) {
  FailingDisk disk;
  MoverRig& rig = disk.rig;
  // Both frames have pages that are newer than the disk's.
  for (const PageId page : {PageId{0}, PageId{1}}) {
    ASSERT_TRUE(rig.begin(page, {write_in(page, Tier::kHost)}));
    rig.write(page, Tier::kHost, 70 + page);
    rig.mover->end(page);
  }
  disk.writes = 1000000;
  const std::vector<Access> use = {read_in(4, Tier::kHost)};
  const Status full = rig.mover->begin(9, use);
  EXPECT_EQ(full.code(), Code::kResource);
  EXPECT_NE(full.message().find("No space left on device"), std::string::npos) << full.message();
  EXPECT_NE(full.message().find("(layer"), std::string::npos) << full.message();
  for (const PageId page : {PageId{0}, PageId{1}}) {
    ASSERT_TRUE(rig.begin(page, {read_in(page, Tier::kHost)}));
    EXPECT_TRUE(rig.holds(page, Tier::kHost, 70 + page));
    rig.mover->end(page);
  }
  disk.writes = 0;
  ASSERT_TRUE(rig.begin(9, use));
  EXPECT_TRUE(rig.holds(4, Tier::kHost, 5));
  rig.mover->end(9);
}

TEST(Mover, WhatADiskDoesNotTakeGoesWhereMemoryHasRoom) {
  FailingDisk disk(5);
  MoverRig& rig = disk.rig;
  disk.writes = 1000000;
  // More new pages than the host has frames, and each is needed there once more.
  for (int round = 0; round < 2; ++round) {
    for (PageId page = 0; page < 5; ++page) {
      ASSERT_TRUE(rig.begin(page, {write_in(page, Tier::kHost)}));
      const std::uint32_t before = round == 0 ? page + 1 : 70 + page;
      EXPECT_TRUE(rig.holds(page, Tier::kHost, before));
      rig.write(page, Tier::kHost, 70 + page + static_cast<std::uint32_t>(round));
      rig.mover->end(page);
    }
  }
  EXPECT_GT(of(rig.mover->stats(), Way::kWrite).failed, 0u);
  disk.writes = 0;
  for (PageId page = 0; page < 5; ++page) {
    ASSERT_TRUE(rig.begin(page, {read_in(page, Tier::kHost)}));
    EXPECT_TRUE(rig.holds(page, Tier::kHost, 71 + page));
    rig.mover->end(page);
  }
}

// Another thread reads the page that the first was to fill, while that waits for one more.
TEST(Mover, WhatWasNeverFilledHoldsNothingThoughOthersUsedItMeanwhile) {
  for (const bool filled : {false, true}) {
    std::atomic<bool> failing{false}, wait{true}, asked{false};
    FaultyFiles files([&](const FileCall& call) -> ssize_t {
      if (call.kind != FileCall::Kind::kRead || !failing) return 0;
      asked = true;
      while (wait) std::this_thread::yield();
      return -EIO;
    });
    MoverRig rig({.pages = 6, .device = 0, .host = 2, .disk = 6}, files);
    for (PageId page = 1; page < 6; ++page) rig.fill(page, page + 1);
    failing = true;
    Status first;
    std::thread other([&] {
      const std::vector<Access> uses = {write_in(0, Tier::kHost, false), read_in(1, Tier::kHost)};
      first = rig.mover->begin(1, uses);
    });
    ASSERT_TRUE(eventually([&] { return asked.load(); }));
    ASSERT_TRUE(rig.begin(2, {filled ? write_in(0, Tier::kHost, false) : read_in(0, Tier::kHost)}));
    if (filled) rig.write(0, Tier::kHost, 80);
    wait = false;
    other.join();
    EXPECT_EQ(first.code(), Code::kResource);
    rig.mover->end(2);
    EXPECT_EQ(rig.mover->has_content(0), filled);
    failing = false;
    ASSERT_TRUE(rig.begin(3, {filled ? read_in(0, Tier::kHost) : read_in(1, Tier::kHost)}));
    EXPECT_TRUE(rig.holds(filled ? 0 : 1, Tier::kHost, filled ? 80 : 2));
    rig.mover->end(3);
  }
}

TEST(Mover, AFlippedBitOnTheDiskIsAnErrorAndNotTheWrongBytes) {
  MoverRig rig({.pages = 6, .device = 0, .host = 2, .disk = 6});
  for (PageId page = 0; page < 6; ++page) rig.fill(page, page + 1);
  for (const auto& entry : std::filesystem::directory_iterator(rig.directory())) {
    if (!entry.is_regular_file() || entry.file_size() < 7 * 4096) continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    for (int slot = 0; slot < 6; ++slot) {
      file.seekp(4096 * (slot + 1) + 100 + slot);
      file.put('\x5a');
    }
  }
  const std::vector<Access> use = {read_in(0, Tier::kHost)};
  const Status failed = rig.mover->begin(1, use);
  EXPECT_EQ(failed.code(), Code::kResource);
  EXPECT_NE(failed.message().find("they are damaged"), std::string::npos) << failed.message();
  EXPECT_EQ(failed.message().find("page 0 (layer0)"), 0u) << failed.message();
}

// A device that has no memory left for so many frames more.
TEST(Mover, ADeviceWithoutMemoryFailsTheUseThatAsksForIt) {
  MoverRig rig({.pages = 6, .device = 3, .host = 6, .scarce = true});
  for (PageId page = 0; page < 6; ++page) rig.fill(page, page + 1);
  rig.device_frames() = 1;
  ASSERT_TRUE(rig.begin(1, {read_in(0)}));
  const std::vector<Access> copied = {read_in(1)};
  const std::vector<Access> taken = {write_in(2, Tier::kDevice, false)};
  for (const auto& use : {copied, taken}) {
    const Status failed = rig.mover->begin(2, use);
    EXPECT_EQ(failed.code(), Code::kResource);
    EXPECT_NE(failed.message().find("out of frames"), std::string::npos) << failed.message();
    EXPECT_NE(failed.message().find("(layer"), std::string::npos) << failed.message();
  }
  EXPECT_TRUE(rig.holds(0, Tier::kDevice, 1));
  EXPECT_FALSE(rig.mover->has_content(2)) << "it was to be written whole";
  rig.device_frames() = 3;
  ASSERT_TRUE(rig.begin(2, copied));
  EXPECT_TRUE(rig.holds(1, Tier::kDevice, 2));
  ASSERT_TRUE(rig.begin(3, taken));
  rig.write(2, Tier::kDevice, 9);
  for (const OperatorKey key : {3, 2, 1}) rig.mover->end(key);
}

TEST(Mover, SpeedsAreMeasured) {
  MoverRig rig({.pages = 16, .device = 2, .host = 16, .page_bytes = 65536});
  for (PageId page = 0; page < 16; ++page) rig.fill(page, page + 1);
  const double first = of(rig.mover->stats(), Way::kUpload).bytes_per_second;
  rig.mover->begin_run("eval");
  for (PageId page = 0; page < 16; ++page) {
    ASSERT_TRUE(rig.begin(page, {read_in(page)}));
    rig.mover->end(page);
  }
  rig.mover->end_run();
  const MoverStats stats = rig.mover->stats();
  EXPECT_NE(of(stats, Way::kUpload).bytes_per_second, first);
  EXPECT_GT(of(stats, Way::kUpload).busy, 0);
  Duration stalled = 0;
  for (const WayStats& way : stats.ways) stalled += way.stalled;
  EXPECT_EQ(stalled, stats.stalled);
}

TEST(Mover, TheLayoutGrowsMeanwhile) {
  MoverRig rig({.pages = 8, .device = 3, .host = 8, .at_first = 2});
  rig.fill(0, 1);
  rig.mover->change_layout([&] {
    for (int i = 0; i < 6; ++i) {
      TensorSpec more;
      more.name = "more" + std::to_string(i);
      more.bytes = 4096;
      ASSERT_TRUE(rig.layout().append(more).ok());
    }
  });
  for (PageId page = 2; page < 8; ++page) rig.fill(page, page + 1);
  ASSERT_TRUE(rig.begin(1, {read_in(7), read_in(0)}));
  EXPECT_TRUE(rig.holds(7, Tier::kDevice, 8));
  rig.mover->end(1);
}

TEST(Mover, AForkedChildIsToldAndHarmsNobody) {
  MoverRig rig({.pages = 8, .device = 2, .host = 3, .disk = 8});
  for (PageId page = 0; page < 8; ++page) rig.fill(page, page + 1);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const std::vector<Access> use = {read_in(0)};
    const Status refused = rig.mover->begin(1, use);
    rig.mover->begin_run("train");
    rig.mover->end(1);
    rig.mover.reset();
    _exit(refused.code() == Code::kInvalidArgument ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  for (PageId page = 0; page < 8; ++page) {
    ASSERT_TRUE(rig.begin(page, {read_in(page)}));
    EXPECT_TRUE(rig.holds(page, Tier::kDevice, page + 1));
    rig.mover->end(page);
  }
}

TEST(Mover, LeavesNoThreadAndNoDescriptor) {
  const int threads = count_threads(), descriptors = count_descriptors();
  for (const auto engine : {IoOptions::Engine::kAuto, IoOptions::Engine::kThreads}) {
    MoverRig rig({.pages = 8, .device = 2, .host = 3, .disk = 8, .engine = engine});
    for (PageId page = 0; page < 8; ++page) rig.fill(page, page + 1);
    EXPECT_GT(count_threads(), threads);
  }
  EXPECT_TRUE(eventually([&] { return count_threads() == threads; })) << thread_names();
  EXPECT_EQ(count_descriptors(), descriptors);
}

TEST(Mover, RefusesWhatCannotBe) {
  const Layout layout = std::move(Layout::make({{"w", 4096 * 4}}, 4096)).value();
  MoverOptions options;
  options.capacities = {2, 4, 0};
  options.max_pages = 3;
  const auto refusal = [&] {
    return Mover::open(FileSystem::real(), options, layout).status().message();
  };
  EXPECT_EQ(refusal(), "a store of at most 3 pages, of which its layout has 4");
  options.max_pages = 8;
  EXPECT_EQ(refusal(), "device memory for 2 pages, but no device");
  device::HostOptions host;
  host.memory.frame_bytes = 8192;
  host.memory.max_frames = 2;
  options.device = std::move(device::make_host_device(host)).value();
  EXPECT_EQ(refusal(), "a device with frames of 8192 bytes for pages of 4096");
  host.memory.frame_bytes = 4096;
  host.memory.max_frames = 1;
  options.device = std::move(device::make_host_device(host)).value();
  EXPECT_EQ(refusal(), "a device of at most 1 frames for 2 pages");
}

}  // namespace
}  // namespace taco::zerocache
