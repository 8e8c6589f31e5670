// One checkpoint that several ranks save together.
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "support/faulty_files.h"
#include "support/gathering_threads.h"
#include "support/saved_pages.h"
#include "support/temporary_directory.h"
#include "zerocache/checkpoint/checkpoint.h"

namespace taco::zerocache {
namespace {

using testing::expect_save;
using testing::FaultyFiles;
using testing::FileCall;
using testing::GatheringThreads;
using testing::layout_of_saves;
using testing::save_number;
using testing::TemporaryDirectory;

FileSystem& real() { return FileSystem::real(); }

// Rank 0's numbers of the store and of the save are those that are saved.
TEST(CheckpointOfRanks, IsLoadedAsIfOneHadSavedIt) {
  const TemporaryDirectory directory;
  const Layout layout = layout_of_saves();
  for (const int ranks : {3, 1, 2, 20}) {
    GatheringThreads group(ranks);
    const auto number = static_cast<std::uint64_t>(ranks);
    group.run([&](Collectives& own) {
      const auto saved = save_number(real(), directory.path(), number, layout, &own);
      ASSERT_TRUE(saved.ok()) << saved.status().message();
    });
    expect_save(directory.path(), number, layout);
    const auto opened = Checkpoint::open(real(), directory.path());
    ASSERT_TRUE(opened.ok());
    EXPECT_TRUE(opened.value().verify().ok());
    // Nothing is left of the save before.
    EXPECT_EQ(real().list(directory.path()).value().size(),
              opened.value().manifest().files.size() + 1);
  }
}

TEST(CheckpointOfRanks, ARankThatFailsHasAllFailAndTheFormerOneStays) {
  const Layout layout = layout_of_saves();
  using Kind = FileCall::Kind;
  for (const Kind kind : {Kind::kOpen, Kind::kReserve, Kind::kWrite, Kind::kSync,
                          Kind::kSyncDirectory, Kind::kMakeDirectory}) {
    for (int failing = 0; failing < 3; ++failing) {
      if (kind == Kind::kMakeDirectory && failing > 0) continue;  // the first makes it for all
      SCOPED_TRACE("call " + std::to_string(static_cast<int>(kind)) + " of rank " +
                   std::to_string(failing));
      const TemporaryDirectory directory;
      ASSERT_TRUE(save_number(real(), directory.path(), 7, layout).ok());
      const std::size_t files = real().list(directory.path()).value().size();
      GatheringThreads group(3);
      group.run([&](Collectives& own) {
        FaultyFiles faulty([&](const FileCall& made) -> ssize_t {
          // The data of the new save, its directory, or its manifest.
          const bool is_new = made.path.find("pages-1-") == std::string::npos;
          return made.kind == kind && own.rank() == failing && is_new ? -EIO : 0;
        });
        const auto saved = save_number(faulty, directory.path(), 8, layout, &own);
        EXPECT_EQ(saved.status().code(), Code::kResource);
        EXPECT_EQ(saved.status().message().starts_with("rank " + std::to_string(failing)),
                  own.rank() != failing)
            << saved.status().message();
      });
      expect_save(directory.path(), 7, layout);
      EXPECT_EQ(real().list(directory.path()).value().size(), files);
    }
  }
}

// As on hosts that each have a directory of that name.
TEST(CheckpointOfRanks, DirectoriesThatAreNotOneAreRefused) {
  const Layout layout = layout_of_saves();
  const TemporaryDirectory directories[2];
  GatheringThreads group(2);
  group.run([&](Collectives& own) {
    const std::string& directory = directories[own.rank()].path();
    const auto saved = save_number(real(), directory, 8, layout, &own);
    EXPECT_EQ(saved.status().code(), Code::kInvalidArgument);
    EXPECT_NE(saved.status().message().find("has to be one directory that all ranks see"),
              std::string::npos)
        << saved.status().message();
  });
  for (const TemporaryDirectory& each : directories) {
    EXPECT_TRUE(real().list(each.path()).value().empty());
  }
}

// All data, and its names, last before the manifest is there that leads to them.
TEST(CheckpointOfRanks, EveryRanksDataLastsBeforeTheManifestIsReplaced) {
  const Layout layout = layout_of_saves();
  const TemporaryDirectory directory;
  std::mutex mutex;
  std::vector<std::pair<int, FileCall>> calls;
  GatheringThreads group(3);
  group.run([&](Collectives& own) {
    FaultyFiles watched([&](const FileCall& made) -> ssize_t {
      std::lock_guard lock(mutex);
      calls.emplace_back(own.rank(), made);
      return 0;
    });
    ASSERT_TRUE(save_number(watched, directory.path(), 1, layout, &own).ok());
  });
  const auto replaced = std::find_if(calls.begin(), calls.end(), [](const auto& call) {
    return call.second.kind == FileCall::Kind::kRename;
  });
  ASSERT_NE(replaced, calls.end());
  EXPECT_EQ(replaced->first, 0);
  for (int rank = 0; rank < 3; ++rank) {
    std::vector<std::string> open;  // written since the last sync
    bool names_last = false;
    for (auto call = calls.begin(); call != replaced; ++call) {
      if (call->first != rank) continue;
      const FileCall& made = call->second;
      if (made.kind == FileCall::Kind::kWrite) open.push_back(made.path);
      if (made.kind == FileCall::Kind::kSync) std::erase(open, made.path);
      if (made.kind == FileCall::Kind::kOpen) names_last = false;
      if (made.kind == FileCall::Kind::kSyncDirectory) names_last = made.path == directory.path();
    }
    EXPECT_TRUE(open.empty()) << "rank " << rank;
    EXPECT_TRUE(names_last) << "rank " << rank;
  }
}

}  // namespace
}  // namespace taco::zerocache
