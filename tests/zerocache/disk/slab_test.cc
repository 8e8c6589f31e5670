#include "zerocache/disk/slab.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "support/faulty_files.h"
#include "support/processes.h"
#include "support/temporary_directory.h"
#include "zerocache/disk/disk_format.h"

namespace taco::zerocache {
namespace {

using testing::FaultyFiles;
using testing::FileCall;
using testing::TemporaryDirectory;

constexpr std::size_t kPage = 4096;

std::uint64_t room_for(std::uint32_t pages) { return page_place(pages, kPage); }

Result<std::unique_ptr<Slab>> make(const std::vector<SlabDirectory>& directories,
                                   StoreId store = 0xabc) {
  return Slab::create(FileSystem::real(), directories, store, kPage);
}

std::vector<std::string> names_in(const std::string& directory) {
  auto names = FileSystem::real().list(directory);
  EXPECT_TRUE(names.ok()) << names.status().message();
  return std::move(names).value();
}

TEST(Slab, GivesEverySlotOnceAndTakesThemBack) {
  const TemporaryDirectory directory;
  const auto made = make({{directory.path(), room_for(5) + kPage - 1}});
  ASSERT_TRUE(made.ok()) << made.status().message();
  Slab& slab = *made.value();
  EXPECT_EQ(slab.slots(), 5u);
  std::set<std::uint64_t> places;
  Slot slot;
  for (int i = 0; i < 5; ++i) {
    slot = slab.take();
    ASSERT_TRUE(slot.exists());
    EXPECT_TRUE(places.insert(slab.place_of(slot)).second);
    EXPECT_GE(slab.place_of(slot), kHeaderBytes);
    EXPECT_EQ(slab.place_of(slot) % kIoAlignment, 0u);
  }
  EXPECT_FALSE(slab.take().exists());
  EXPECT_EQ(slab.free_slots(), 0u);
  slab.give_back(slot);
  EXPECT_EQ(slab.take(), slot);
  const auto size = slab.files()[0]->size();
  EXPECT_EQ(size.value(), room_for(5)) << "the room was not set aside";
}

TEST(Slab, SpreadsNeighboursOverItsDirectoriesByTheirSize) {
  const TemporaryDirectory large, small;
  const auto made = make({{large.path(), room_for(30)}, {small.path(), room_for(10)}});
  ASSERT_TRUE(made.ok()) << made.status().message();
  std::map<std::uint32_t, int> taken;
  for (int i = 1; i <= 40; ++i) {
    ++taken[made.value()->take().file];
    EXPECT_NEAR(taken[0], 3 * i / 4, 1) << "after " << i;
  }
  EXPECT_EQ(taken[0], 30);
  EXPECT_EQ(taken[1], 10);
}

TEST(Slab, ItsFilesSayWhatTheyAreAndGoWithIt) {
  const TemporaryDirectory directory;
  {
    const auto made = make({{directory.path(), room_for(3)}});
    ASSERT_TRUE(made.ok());
    AlignedMemory block(kHeaderBytes);
    ASSERT_TRUE(read_fully(*made.value()->files()[0], block.span(), 0).ok());
    const auto header = decode_header(HeaderBlock(block.data(), kHeaderBytes), "f");
    ASSERT_TRUE(header.ok()) << header.status().message();
    EXPECT_EQ(header.value().kind, DataHeader::Kind::kSlab);
    EXPECT_EQ(header.value().store, 0xabcu);
    EXPECT_EQ(header.value().pages, 3u);
    EXPECT_EQ(names_in(directory.path()).size(), 2u);  // the slab and the lock
  }
  EXPECT_EQ(names_in(directory.path()), std::vector<std::string>{});
}

TEST(Slab, ADirectoryIsForOneProcessAndTheErrorNamesIt) {
  const TemporaryDirectory directory;
  const auto made = make({{directory.path(), room_for(1)}});
  ASSERT_TRUE(made.ok());
  const std::string pid = std::to_string(getpid());
  const auto again = make({{directory.path(), room_for(1)}}, 0xdef);
  EXPECT_EQ(again.status().code(), Code::kInvalidArgument);
  EXPECT_NE(again.status().message().find("in use by this process (" + pid + ")"),
            std::string::npos)
      << again.status().message();
  const std::vector<int> statuses = testing::run_processes({.count = 1}, [&](auto&) {
    const auto other = make({{directory.path(), room_for(1)}}, 0xdef);
    EXPECT_NE(other.status().message().find("in use by process " + pid + " (slab_test"),
              std::string::npos)
        << other.status().message();
    EXPECT_NE(other.status().message().find(directory.path()), std::string::npos);
  });
  EXPECT_EQ(statuses, std::vector<int>{0});
  EXPECT_EQ(names_in(directory.path()).size(), 2u) << "the other process removed something";
}

TEST(Slab, OfManyProcessesThatWantADirectoryOneHasItAtATime) {
  const TemporaryDirectory directory;
  const std::string claim = directory / "claim";
  const std::vector<int> statuses = testing::run_processes({.count = 4}, [&](auto& fellowship) {
    fellowship.barrier();
    int had = 0;
    for (const Time end = monotonic_now() + 20 * kSecond; had < 20 && monotonic_now() < end;) {
      const auto lock = FileSystem::real().lock(directory.path());
      if (!lock.ok()) {
        usleep(100);
        continue;
      }
      ++had;
      const int fd = open(claim.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
      EXPECT_GE(fd, 0) << "two hold the lock";
      close(fd);
      unlink(claim.c_str());
    }
    EXPECT_EQ(had, 20);
  });
  EXPECT_EQ(statuses, std::vector<int>(4, 0));
}

// DataLoader workers are forked, and outlive their parent for a moment.
TEST(Slab, AForkedChildNeitherHoldsTheDirectoryNorTakesItsFiles) {
  const TemporaryDirectory directory;
  auto made = make({{directory.path(), room_for(1)}});
  ASSERT_TRUE(made.ok());
  const std::vector<int> statuses = testing::run_processes({.count = 1}, [&](auto&) {
    auto slab = std::move(made).value();
    slab.reset();
  });
  EXPECT_EQ(statuses, std::vector<int>{0});
  EXPECT_EQ(names_in(directory.path()).size(), 2u);

  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    close(ends[1]);
    char byte;
    (void)!read(ends[0], &byte, 1);  // until the parent closes its end
    _exit(0);
  }
  std::move(made).value().reset();
  EXPECT_TRUE(make({{directory.path(), room_for(1)}}, 0xdef).ok()) << "the child holds it";
  close(ends[0]);
  close(ends[1]);
  waitpid(child, nullptr, 0);
}

TEST(Slab, OneWhoseDirectoryWasRemovedDoesNotUnlockItsSuccessor) {
  const TemporaryDirectory directory;
  auto made = make({{directory.path(), room_for(1)}});
  ASSERT_TRUE(made.ok());
  std::filesystem::remove_all(directory.path());
  std::filesystem::create_directory(directory.path());
  const auto successor = make({{directory.path(), room_for(1)}}, 0xdef);
  ASSERT_TRUE(successor.ok()) << successor.status().message();
  std::move(made).value().reset();
  EXPECT_FALSE(make({{directory.path(), room_for(1)}}, 0x123).ok());
  EXPECT_EQ(names_in(directory.path()).size(), 2u);
}

TEST(Slab, WhatAKilledProcessLeftIsRemovedAndNothingElse) {
  const TemporaryDirectory directory;
  const std::vector<int> statuses = testing::run_processes({.count = 1}, [&](auto&) {
    const auto made = make({{directory.path(), room_for(4)}}, 0x77);
    EXPECT_TRUE(made.ok());
    kill(getpid(), SIGKILL);
  });
  EXPECT_EQ(statuses, std::vector<int>{SIGKILL});
  std::ofstream(directory / "taco-zerocache-mine.slab") << "a user's";
  std::ofstream(directory / "checkpoint.manifest") << "a user's";
  ASSERT_EQ(names_in(directory.path()).size(), 4u);
  {
    const auto made = make({{directory.path(), room_for(1)}}, 0x78);
    ASSERT_TRUE(made.ok()) << made.status().message();
    EXPECT_EQ(
        names_in(directory.path()),
        (std::vector<std::string>{"checkpoint.manifest", "taco-zerocache-0000000000000078.slab",
                                  "taco-zerocache-mine.slab", "taco-zerocache.lock"}));
  }
  EXPECT_EQ(names_in(directory.path()).size(), 2u);
}

std::string refusal(const Result<std::unique_ptr<Slab>>& made, Code code) {
  EXPECT_FALSE(made.ok());
  EXPECT_EQ(made.status().code(), code) << made.status().message();
  return made.status().message();
}

TEST(Slab, SaysWhatIsWrongWithADirectory) {
  const TemporaryDirectory directory;
  const std::string missing = directory / "missing";
  EXPECT_NE(refusal(make({{missing, room_for(1)}}), Code::kInvalidArgument).find(missing),
            std::string::npos);
  const std::string file = directory / "file";
  std::ofstream(file) << "x";
  EXPECT_NE(refusal(make({{file, room_for(1)}}), Code::kInvalidArgument).find("Not a directory"),
            std::string::npos);
  EXPECT_NE(refusal(make({{directory.path(), kPage}}), Code::kInvalidArgument)
                .find("no room for a page: 8192 are the least"),
            std::string::npos);
  refusal(make({}), Code::kInvalidArgument);
  EXPECT_EQ(names_in(directory.path()), std::vector<std::string>{"file"});
}

TEST(Slab, ADiskThatIsTooSmallOrReadOnlyIsAnErrorAndLeavesNothing) {
  const TemporaryDirectory directory;
  const std::string disk = directory.path();
  const std::vector<int> statuses = testing::run_processes({.count = 1}, [&](auto&) {
    if (!testing::mount_small_disk(disk, 1 << 20)) return;
    const std::string full = refusal(make({{disk, 4 << 20}}), Code::kResource);
    EXPECT_NE(full.find("No space left on device"), std::string::npos) << full;
    EXPECT_NE(full.find(disk), std::string::npos) << full;
    EXPECT_EQ(names_in(disk), std::vector<std::string>{});
    EXPECT_TRUE(make({{disk, 1 << 19}}).ok());
    if (!testing::make_read_only(disk)) return;
    const std::string fixed = refusal(make({{disk, 1 << 19}}), Code::kInvalidArgument);
    EXPECT_NE(fixed.find("Read-only file system"), std::string::npos) << fixed;
  });
  EXPECT_EQ(statuses, std::vector<int>{0});
}

TEST(Slab, IfOneDirectoryFailsTheOthersAreLetGo) {
  const TemporaryDirectory good, bad;
  FaultyFiles files([&](const FileCall& call) -> ssize_t {
    const bool hit = call.kind == FileCall::Kind::kWrite && call.path.starts_with(bad.path());
    return hit ? -EIO : 0;
  });
  const auto made =
      Slab::create(files, {{good.path(), room_for(1)}, {bad.path(), room_for(1)}}, 1, kPage);
  EXPECT_NE(refusal(made, Code::kResource).find(bad.path()), std::string::npos);
  EXPECT_EQ(names_in(good.path()), std::vector<std::string>{});
  EXPECT_EQ(names_in(bad.path()), std::vector<std::string>{});
}

}  // namespace
}  // namespace taco::zerocache
