#include "base/arena.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <string_view>
#include <utility>

namespace taco {
namespace {

constexpr std::size_t kBytes = std::size_t{4} << 20;

TEST(Arena, IsZeroedWritableAndSaysItsPages) {
  for (auto sharing : {Arena::Sharing::kPrivate, Arena::Sharing::kShared}) {
    auto arena = Arena::create("arena-test", kBytes, sharing);
    ASSERT_TRUE(arena.ok()) << arena.status().message();
    EXPECT_GE(arena->size(), kBytes);
    EXPECT_EQ(arena->data()[kBytes - 1], std::byte{0});
    std::memset(arena->data(), 1, kBytes);
    EXPECT_NE(arena->pages().find("pages"), std::string::npos);
  }
}

TEST(Arena, SmallOnesTakePlainPages) {
  auto arena = Arena::create("arena-test", 100, Arena::Sharing::kPrivate);
  ASSERT_TRUE(arena.ok());
  EXPECT_EQ(arena->size(), 4096u);
  EXPECT_EQ(arena->pages(), "plain pages");
}

TEST(Arena, ASharedOneCanBeMappedTwiceButNeverResized) {
  auto arena = Arena::create("arena-test", kBytes, Arena::Sharing::kShared);
  ASSERT_TRUE(arena.ok());
  EXPECT_NE(ftruncate(arena->fd(), 4096), 0);
  EXPECT_NE(ftruncate(arena->fd(), static_cast<off_t>(2 * arena->size())), 0);
  EXPECT_EQ(fcntl(arena->fd(), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
  void* second = mmap(nullptr, arena->size(), PROT_READ, MAP_SHARED, arena->fd(), 0);
  ASSERT_NE(second, MAP_FAILED);
  arena->data()[77] = std::byte{42};
  EXPECT_EQ(static_cast<std::byte*>(second)[77], std::byte{42});
  munmap(second, arena->size());
}

TEST(Arena, CommitSucceedsInsideAndFailsBeyondTheEnd) {
  auto arena = Arena::create("arena-test", kBytes, Arena::Sharing::kShared);
  ASSERT_TRUE(arena.ok());
  EXPECT_TRUE(arena->commit(0, 65536).ok());
  EXPECT_EQ(arena->commit(arena->size(), 65536).code(), Code::kResource);
}

TEST(Arena, AnImpossibleSizeIsAStatus) {
  auto arena = Arena::create("arena-test", std::size_t{1} << 60, Arena::Sharing::kPrivate);
  ASSERT_FALSE(arena.ok());
  EXPECT_EQ(arena.status().code(), Code::kResource);
}

TEST(Arena, MovingLeavesNothingBehind) {
  auto made = Arena::create("arena-test", kBytes, Arena::Sharing::kShared);
  ASSERT_TRUE(made.ok());
  Arena first = std::move(*made);
  std::byte* data = first.data();
  Arena second(std::move(first));
  EXPECT_EQ(first.data(), nullptr);
  EXPECT_EQ(second.data(), data);
}

// Something else may lie at its address in the child: a sanitizer's own memory does.
TEST(Arena, IsNotInheritedByAForkedChild) {
  auto arena = Arena::create("arena-test", kBytes, Arena::Sharing::kPrivate);
  ASSERT_TRUE(arena.ok());
  constexpr std::string_view kContent = "known to the parent alone";
  std::memcpy(arena->data(), kContent.data(), kContent.size());
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    // The kernel reads it: what is not mapped is an error here, and no signal.
    char read_back[kContent.size()] = {};
    const bool mapped = write(ends[1], arena->data(), sizeof read_back) == sizeof read_back &&
                        read(ends[0], read_back, sizeof read_back) == sizeof read_back;
    _exit(mapped && std::string_view(read_back, sizeof read_back) == kContent ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  close(ends[0]);
  close(ends[1]);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0) << "its content exists in the child";
}

}  // namespace
}  // namespace taco
