#include "zerocache/disk/disk_tier.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "support/faulty_files.h"
#include "support/temporary_directory.h"
#include "zerocache/disk/disk_format.h"
#include "zerocache/disk/file_system.h"

namespace taco::zerocache {
namespace {

using testing::FaultyFiles;
using testing::FileCall;
using testing::TemporaryDirectory;
using Engine = IoOptions::Engine;

constexpr std::size_t kPage = 4096;
constexpr std::uint32_t kPages = 8;

// A store of one tensor a page, with a frame for each page.
class Rig {
 public:
  explicit Rig(std::uint32_t slots = kPages, FileSystem& files = FileSystem::real(),
               Engine engine = Engine::kAuto)
      : memory_(kPages * kPage) {
    DiskTierOptions options;
    options.directories = {{directory_.path(), page_place(slots, kPage)}};
    options.store = 0x5108e;
    options.io.engine = engine;
    options.page_bytes = kPage;
    options.pages = kPages;
    options.describe = [](PageId page) {
      return "page " + std::to_string(page) + " (layer" + std::to_string(page) + ")";
    };
    auto opened = DiskTier::open(files, options);
    EXPECT_TRUE(opened.ok()) << opened.status().message();
    tier = std::move(opened).value();
    for (PageId page = 0; page < kPages; ++page) write_memory(page, page + 1);
  }
  std::byte* frame(PageId page) { return memory_.data() + page * kPage; }
  void write_memory(PageId page, int value) { std::memset(frame(page), value, kPage); }
  bool holds(PageId page, int value) {
    const std::vector<std::byte> expected(kPage, std::byte(value));
    return std::memcmp(frame(page), expected.data(), kPage) == 0;
  }
  Status finish(PageId page) {
    std::vector<DiskTier::Done> done;
    while (done.empty()) tier->complete(kNever, &done);
    EXPECT_EQ(done.size(), 1u);
    EXPECT_EQ(done[0].page, page);
    return done[0].status;
  }
  Status write(PageId page) {
    TACO_RETURN_IF_ERROR(tier->write(page, frame(page)));
    return finish(page);
  }
  Status read(PageId page) {
    write_memory(page, 0);
    tier->read(page, frame(page));
    return finish(page);
  }
  bool on_disk(PageId page) const { return (*tier)[page].slot.exists(); }
  const Version& written(PageId page) const { return (*tier)[page].written; }
  // Its memory is given up; what is on disk already is not written again.
  Status evict(PageId page) {
    if (!on_disk(page)) TACO_RETURN_IF_ERROR(write(page));
    write_memory(page, 0);
    return {};
  }
  std::string path() const { return tier->slab().files()[0]->path(); }
  // The bytes on the disk, read behind the store's back.
  std::vector<char> peek(PageId page) {
    std::vector<char> bytes(kPage);
    with_file(
        [&](int fd, off_t at) { EXPECT_EQ(pread(fd, bytes.data(), kPage, at), ssize_t{kPage}); },
        page);
    return bytes;
  }
  void poke(PageId page, const std::vector<char>& bytes) {
    with_file(
        [&](int fd, off_t at) { EXPECT_EQ(pwrite(fd, bytes.data(), kPage, at), ssize_t{kPage}); },
        page);
  }
  const std::string& directory() const { return directory_.path(); }

 private:
  void with_file(const std::function<void(int, off_t)>& use, PageId page) {
    const int fd = open(path().c_str(), O_RDWR | O_CLOEXEC);
    ASSERT_GE(fd, 0);
    use(fd, static_cast<off_t>(tier->slab().place_of((*tier)[page].slot)));
    close(fd);
  }

  TemporaryDirectory directory_;
  AlignedMemory memory_;

 public:
  std::unique_ptr<DiskTier> tier;
};

TEST(DiskTier, PagesComeBackAsTheyWere) {
  for (const Engine engine : {Engine::kUring, Engine::kThreads}) {
    Rig rig(kPages, FileSystem::real(), engine);
    for (PageId page = 0; page < kPages; ++page) {
      ASSERT_TRUE(rig.tier->write(page, rig.frame(page)).ok());
    }
    std::vector<DiskTier::Done> done;
    while (rig.tier->open() > 0) rig.tier->complete(kNever, &done);
    EXPECT_EQ(done.size(), kPages);
    for (PageId page = 0; page < kPages; ++page) ASSERT_TRUE(rig.evict(page).ok());
    for (PageId page = kPages; page-- > 0;) {
      const Status read = rig.read(page);
      ASSERT_TRUE(read.ok()) << read.message();
      EXPECT_TRUE(rig.holds(page, static_cast<int>(page) + 1));
    }
  }
}

TEST(DiskTier, APageThatIsOnlyReadIsNeverWrittenAgain) {
  std::atomic<int> writes{0};
  FaultyFiles files([&](const FileCall& call) {
    writes += call.kind == FileCall::Kind::kWrite;
    return 0;
  });
  Rig rig(kPages, files);
  ASSERT_TRUE(rig.evict(3).ok());
  const int before = writes;
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(rig.read(3).ok());
    ASSERT_TRUE(rig.evict(3).ok());
  }
  EXPECT_EQ(writes, before);
  ASSERT_TRUE(rig.read(3).ok());
  rig.tier->drop(3);
  rig.write_memory(3, 77);
  ASSERT_TRUE(rig.evict(3).ok());
  EXPECT_EQ(writes, before + 1);
  ASSERT_TRUE(rig.read(3).ok());
  EXPECT_TRUE(rig.holds(3, 77));
}

// Looking at a page takes a while, in which the disk would have nothing to do.
TEST(DiskTier, OfWhatWasReadOnePageComesAtATime) {
  for (const Engine engine : {Engine::kAuto, Engine::kThreads}) {
    Rig rig(kPages, FileSystem::real(), engine);
    for (PageId page = 0; page < 4; ++page) {
      ASSERT_TRUE(rig.write(page).ok());
      rig.write_memory(page, 0);
    }
    for (PageId page = 0; page < 4; ++page) rig.tier->read(page, rig.frame(page));
    std::size_t all = 0;
    while (rig.tier->open() > 0) {
      std::vector<DiskTier::Done> done;
      rig.tier->complete(kNever, &done);
      ASSERT_LE(done.size(), 1u);
      for (const DiskTier::Done& each : done) {
        EXPECT_TRUE(each.status.ok()) << each.status.message();
        EXPECT_TRUE(rig.holds(each.page, static_cast<int>(each.page) + 1));
      }
      all += done.size();
    }
    EXPECT_EQ(all, 4u);
  }
}

TEST(DiskTier, AFlippedBitIsFoundWhereverItIs) {
  Rig rig;
  for (const std::size_t bit : {std::size_t{0}, std::size_t{12345}, 8 * kPage - 1}) {
    ASSERT_TRUE(rig.evict(2).ok());
    std::vector<char> bytes = rig.peek(2);
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ 1 << bit % 8);
    rig.poke(2, bytes);
    const Status read = rig.read(2);
    EXPECT_EQ(read.code(), Code::kResource);
    EXPECT_NE(read.message().find("page 2 (layer2): " + rig.path()), std::string::npos)
        << read.message();
    EXPECT_NE(read.message().find("they are damaged"), std::string::npos) << read.message();
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ 1 << bit % 8);
    rig.poke(2, bytes);
    EXPECT_TRUE(rig.read(2).ok()) << "mended, it can be read";
  }
}

TEST(DiskTier, AStalePageIsFound) {
  Rig rig;
  ASSERT_TRUE(rig.evict(5).ok());
  const std::vector<char> old = rig.peek(5);
  ASSERT_TRUE(rig.read(5).ok());
  rig.tier->drop(5);
  rig.write_memory(5, 99);
  ASSERT_TRUE(rig.evict(5).ok());
  rig.poke(5, old);  // as if the disk had lost the second write
  const Status read = rig.read(5);
  EXPECT_NE(read.message().find("generation 2: they are stale, of generation 1"), std::string::npos)
      << read.message();
}

// The same bytes as before are stale all the same: a disk that loses writes is not to be trusted.
TEST(DiskTier, APageWrittenTwiceWithTheSameBytesHasAnotherChecksum) {
  Rig rig;
  ASSERT_TRUE(rig.evict(0).ok());
  const std::uint64_t first = rig.written(0).checksum;
  ASSERT_TRUE(rig.read(0).ok());
  rig.tier->drop(0);
  ASSERT_TRUE(rig.evict(0).ok());
  EXPECT_NE(rig.written(0).checksum, first);
}

TEST(DiskTier, AMisplacedPageIsFoundEvenWithTheSameBytes) {
  Rig rig;
  for (const bool same : {false, true}) {
    rig.write_memory(1, 50);
    rig.write_memory(6, same ? 50 : 60);
    for (const PageId page : {PageId{1}, PageId{6}}) {
      rig.tier->drop(page);
      ASSERT_TRUE(rig.evict(page).ok());
    }
    if (same) {
      EXPECT_NE(rig.written(1).checksum, rig.written(6).checksum);
    } else {
      rig.poke(1, rig.peek(6));
      const Status read = rig.read(1);
      EXPECT_NE(read.message().find("they are those of page 6 (layer6)"), std::string::npos)
          << read.message();
      std::vector<char> own(kPage, 50);
      rig.poke(1, own);
    }
    ASSERT_TRUE(rig.read(1).ok());
    ASSERT_TRUE(rig.read(6).ok());
  }
}

// A disk that fails once: the error names what it hit, nothing else is harmed, a retry works.
TEST(DiskTier, AnErrorOfTheDiskLeavesThePageWhereItWas) {
  std::atomic<int> failing{0};
  FaultyFiles files([&](const FileCall& call) -> ssize_t {
    const bool moves = call.kind == FileCall::Kind::kRead || call.kind == FileCall::Kind::kWrite;
    return moves && failing > 0 && failing-- > 0 ? -EIO : 0;
  });
  Rig rig(kPages, files);
  failing = 1;
  const Status written = rig.write(4);
  EXPECT_EQ(written.code(), Code::kResource);
  EXPECT_EQ(written.message().find("page 4 (layer4): writing 4096 bytes at "), 0u)
      << written.message();
  EXPECT_NE(written.message().find(rig.path() + ": Input/output error"), std::string::npos);
  EXPECT_TRUE(rig.holds(4, 5)) << "its bytes are in memory still";
  rig.tier->drop(4);
  ASSERT_TRUE(rig.evict(4).ok());
  failing = 1;
  const Status read = rig.read(4);
  EXPECT_EQ(read.message().find("page 4 (layer4): reading 4096 bytes at "), 0u) << read.message();
  EXPECT_TRUE(rig.on_disk(4));
  ASSERT_TRUE(rig.read(4).ok());
  EXPECT_TRUE(rig.holds(4, 5));
}

TEST(DiskTier, AWriteThatFailedHalfwayIsNotTakenForTheBytesBefore) {
  bool tear = false;
  FaultyFiles files([&](const FileCall& call) -> ssize_t {
    return tear && call.kind == FileCall::Kind::kWrite ? -EIO : 0;
  });
  Rig rig(1, files);  // one slot: it is the same again
  ASSERT_TRUE(rig.write(4).ok());
  const Version before = rig.written(4);
  rig.tier->drop(4);
  tear = true;
  EXPECT_FALSE(rig.write(4).ok());
  EXPECT_EQ(rig.written(4).generation, before.generation);
  rig.tier->drop(4);
  tear = false;
  ASSERT_TRUE(rig.write(4).ok());
  EXPECT_EQ(rig.written(4).generation, before.generation + 2);
  EXPECT_TRUE(rig.read(4).ok());
}

TEST(DiskTier, ASlotThatIsGivenUpIsAnothersAndAFullDiskSaysSo) {
  Rig rig(2);
  ASSERT_TRUE(rig.write(0).ok());
  ASSERT_TRUE(rig.write(1).ok());
  const Status full = rig.write(4);
  EXPECT_EQ(full.code(), Code::kResource);
  EXPECT_NE(full.message().find("page 4 (layer4) finds no room on disk: all 2 slots"),
            std::string::npos)
      << full.message();
  EXPECT_EQ((*rig.tier)[4].generation, 0u);
  rig.tier->drop(0);
  EXPECT_FALSE(rig.on_disk(0));
  ASSERT_TRUE(rig.evict(4).ok());
  ASSERT_TRUE(rig.read(4).ok());
  EXPECT_TRUE(rig.holds(4, 5));
  ASSERT_TRUE(rig.read(1).ok());
  EXPECT_TRUE(rig.holds(1, 2));
}

TEST(DiskTier, WritesNothingToAFileThatWasRemovedButReadsWhatItHolds) {
  Rig rig;
  ASSERT_TRUE(rig.evict(0).ok());
  std::filesystem::remove_all(rig.directory());
  const Status refused = rig.tier->write(1, rig.frame(1));
  EXPECT_EQ(refused.code(), Code::kResource);
  EXPECT_NE(refused.message().find("page 1 (layer1)"), std::string::npos) << refused.message();
  EXPECT_NE(refused.message().find(rig.directory()), std::string::npos) << refused.message();
  EXPECT_NE(refused.message().find(".slab was removed"), std::string::npos) << refused.message();
  EXPECT_FALSE(rig.on_disk(1));
  ASSERT_TRUE(rig.read(0).ok());
  EXPECT_TRUE(rig.holds(0, 1));
  rig.tier.reset();
}

}  // namespace
}  // namespace taco::zerocache
