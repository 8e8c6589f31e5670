#include "device/host_memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "support/reachable.h"

namespace taco::device {
namespace {

constexpr std::size_t kFrame = std::size_t{64} << 10;
constexpr std::size_t kHuge = std::size_t{4} << 20;

std::unique_ptr<HostMemory> make(HostMemory::Options options) {
  auto memory = HostMemory::create(options);
  EXPECT_TRUE(memory.ok()) << memory.status().message();
  return memory.ok() ? std::move(*memory) : nullptr;
}

FrameId must(Result<FrameId> frame) {
  EXPECT_TRUE(frame.ok()) << frame.status().message();
  return frame.ok() ? *frame : FrameId{~0u};
}

void expect_invalid(const Status& status, const std::string& words) {
  EXPECT_EQ(status.code(), Code::kInvalidArgument) << status.message();
  EXPECT_NE(status.message().find(words), std::string::npos) << status.message();
}

// Mappings of this process that begin in [begin, begin + bytes).
int mappings_in(const std::byte* begin, std::size_t bytes) {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);) {
    const auto from = reinterpret_cast<const std::byte*>(std::stoull(line, nullptr, 16));
    count += from >= begin && from < begin + bytes;
  }
  return count;
}

std::size_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  std::size_t all = 0, resident = 0;
  statm >> all >> resident;
  return resident * 4096;
}

// With a kernel that moves memory, and as on one that does not.
class HostMemoryTest : public ::testing::TestWithParam<bool> {
 protected:
  HostMemory::Options options(std::size_t max_frames, std::size_t frame_bytes = kFrame) const {
    HostMemory::Options options;
    options.frame_bytes = frame_bytes;
    options.max_frames = max_frames;
    options.may_move = GetParam();
    return options;
  }

  testing::Prober prober_;
};

INSTANTIATE_TEST_SUITE_P(Kernels, HostMemoryTest, ::testing::Bool(), [](const auto& info) {
  return std::string(info.param ? "ThatMove" : "ThatDoNot");
});

TEST_P(HostMemoryTest, AnAddressCanBeTouchedWhileAFrameIsMappedThere) {
  auto memory = make(options(2));
  auto range = memory->reserve(3 * kFrame);
  ASSERT_TRUE(range.ok());
  const FrameId frame = must(memory->create_frame());
  std::byte* second = *range + kFrame;
  EXPECT_FALSE(prober_.readable(second));
  ASSERT_TRUE(memory->map(second, frame).ok());
  std::memset(second, 7, kFrame);
  EXPECT_TRUE(prober_.writable(second));
  EXPECT_FALSE(prober_.readable(second - 1));
  EXPECT_FALSE(prober_.readable(second + kFrame));
  EXPECT_EQ(must(memory->unmap(second)), frame);
  EXPECT_FALSE(prober_.readable(second));
  EXPECT_FALSE(prober_.readable(second + kFrame - 1));
}

TEST_P(HostMemoryTest, FramesAreWholeAtEveryAddress) {
  for (const std::size_t bytes : {std::size_t{4096}, kFrame, kHuge}) {
    auto memory = make(options(2, bytes));
    auto range = memory->reserve(4 * bytes);
    ASSERT_TRUE(range.ok());
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(*range) % bytes, 0u);
    const FrameId frames[] = {must(memory->create_frame()), must(memory->create_frame())};
    for (int at = 0; at < 3; ++at) {
      std::byte* address = *range + at * bytes;
      ASSERT_TRUE(memory->map(address, frames[0]).ok());
      ASSERT_TRUE(memory->map(address + bytes, frames[1]).ok());
      std::memset(address, 1 + at, 2 * bytes);  // over the seam, as one tensor would
      EXPECT_EQ(address[2 * bytes - 1], std::byte(1 + at));
      must(memory->unmap(address));
      must(memory->unmap(address + bytes));
    }
  }
}

TEST_P(HostMemoryTest, TheCapIsHardAndNamed) {
  auto memory = make(options(2));
  const FrameId first = must(memory->create_frame());
  must(memory->create_frame());
  auto third = memory->create_frame();
  ASSERT_FALSE(third.ok());
  EXPECT_EQ(third.status().code(), Code::kResource);
  EXPECT_EQ(third.status().message(),
            "all 2 frames of 64 KiB that the device's cap allows are in use");
  ASSERT_TRUE(memory->destroy_frame(first).ok());
  must(memory->create_frame());
  EXPECT_EQ(memory->usage().frames, 2u);
}

TEST_P(HostMemoryTest, PoisonIsWhatANewOrUnmappedFrameIsFullOf) {
  HostMemory::Options poisoned = options(1);
  poisoned.poison = true;
  auto memory = make(poisoned);
  auto range = memory->reserve(2 * kFrame);
  ASSERT_TRUE(range.ok());
  const FrameId frame = must(memory->create_frame());
  for (int use = 0; use < 3; ++use) {
    std::byte* address = *range + (use % 2) * kFrame;
    ASSERT_TRUE(memory->map(address, frame).ok());
    for (std::size_t at = 0; at < kFrame; at += sizeof(float)) {
      float value;
      std::memcpy(&value, address + at, sizeof value);
      ASSERT_TRUE(std::isnan(value)) << "use " << use << ", byte " << at;
    }
    std::memset(address, 0, kFrame);
    must(memory->unmap(address));
  }
}

TEST_P(HostMemoryTest, ADestroyedFrameGivesItsMemoryBack) {
  constexpr std::size_t kCount = 16;
  auto memory = make(options(kCount, kHuge));
  const std::size_t before = resident_bytes();
  std::vector<FrameId> frames;
  auto range = memory->reserve(kCount * kHuge);
  ASSERT_TRUE(range.ok());
  for (std::size_t i = 0; i < kCount; ++i) {
    frames.push_back(must(memory->create_frame()));
    ASSERT_TRUE(memory->map(*range + i * kHuge, frames[i]).ok());
    std::memset(*range + i * kHuge, 1, kHuge);
  }
  EXPECT_GE(resident_bytes(), before + kCount * kHuge * 9 / 10);
  for (std::size_t i = 0; i < kCount; ++i) {
    must(memory->unmap(*range + i * kHuge));
    ASSERT_TRUE(memory->destroy_frame(frames[i]).ok());
  }
  EXPECT_LT(resident_bytes(), before + kCount * kHuge / 10);
}

TEST_P(HostMemoryTest, WhatCannotBeMappedIsRefused) {
  auto memory = make(options(2));
  auto range = memory->reserve(2 * kFrame);
  ASSERT_TRUE(range.ok());
  const FrameId frame = must(memory->create_frame()), other = must(memory->create_frame());
  expect_invalid(memory->map(*range + 4096, frame), "not that of a frame");
  expect_invalid(memory->map(*range + 2 * kFrame, frame), "not that of a frame");
  expect_invalid(memory->map(*range - kFrame, frame), "not that of a frame");
  expect_invalid(memory->map(*range, FrameId{7}), "frame 7 does not exist");
  expect_invalid(memory->unmap(*range).status(), "no frame is mapped");
  ASSERT_TRUE(memory->map(*range, frame).ok());
  expect_invalid(memory->map(*range, other), "has frame 0 of 64 KiB already");
  expect_invalid(memory->map(*range + kFrame, frame), "frame 0 of 64 KiB is mapped");
  expect_invalid(memory->destroy_frame(frame), "is mapped");
  ASSERT_TRUE(memory->destroy_frame(other).ok());
  expect_invalid(memory->destroy_frame(other), "does not exist");
  expect_invalid(memory->release(*range + kFrame), "no range begins");
  expect_invalid(memory->reserve(0).status(), "0 bytes");
  EXPECT_EQ(memory->reserve(~std::size_t{0}).status().code(), Code::kResource);
  EXPECT_EQ(memory->reserve(std::size_t{1} << 60).status().code(), Code::kResource);
}

TEST_P(HostMemoryTest, OptionsThatCannotBeAreNamed) {
  expect_invalid(HostMemory::create(options(4, 3 * 4096)).status(), "12288 bytes");
  expect_invalid(HostMemory::create(options(4, 2048)).status(), "at least 4096");
  expect_invalid(HostMemory::create(options(0)).status(), "0 frames");
  EXPECT_EQ(HostMemory::create(options(std::size_t{1} << 31, kHuge << 8)).status().code(),
            Code::kResource);
}

TEST_P(HostMemoryTest, ReleasingARangeFreesItsFramesForOthers) {
  auto memory = make(options(1));
  auto range = memory->reserve(kFrame);
  ASSERT_TRUE(range.ok());
  const FrameId frame = must(memory->create_frame());
  ASSERT_TRUE(memory->map(*range, frame).ok());
  ASSERT_TRUE(memory->release(*range).ok());
  EXPECT_EQ(memory->usage().mapped, 0u);
  auto another = memory->reserve(kFrame);
  ASSERT_TRUE(another.ok());
  EXPECT_TRUE(memory->map(*another, frame).ok());
  std::memset(*another, 1, kFrame);
}

// A process may have only so many mappings, whatever it has mapped and where.
TEST_P(HostMemoryTest, MappingsDoNotPileUp) {
  constexpr std::size_t kPlaces = 512, kFrames = 8;
  auto memory = make(options(kFrames, 4096));
  auto range = memory->reserve(kPlaces * 4096);
  ASSERT_TRUE(range.ok());
  std::vector<FrameId> idle;
  for (std::size_t i = 0; i < kFrames; ++i) idle.push_back(must(memory->create_frame()));
  std::map<std::size_t, FrameId> mapped;
  std::mt19937 random(1);
  for (int step = 0; step < 4000; ++step) {
    const std::size_t place = random() % kPlaces;
    if (mapped.count(place) == 0 && !idle.empty()) {
      ASSERT_TRUE(memory->map(*range + place * 4096, idle.back()).ok());
      mapped[place] = idle.back();
      idle.pop_back();
    } else if (!mapped.empty()) {
      const auto [where, frame] = *mapped.begin();
      EXPECT_EQ(must(memory->unmap(*range + where * 4096)), frame);
      idle.push_back(frame);
      mapped.erase(where);
    }
  }
  EXPECT_LE(mappings_in(*range, kPlaces * 4096), static_cast<int>(2 * kFrames + 1));
}

// A hole where a frame was, or where it waits, would be taken by somebody, and overwritten later.
TEST_P(HostMemoryTest, NobodyElseGetsTheAddressesOfAFrame) {
  auto memory = make(options(1));
  auto range = memory->reserve(kFrame);
  ASSERT_TRUE(range.ok());
  const FrameId frame = must(memory->create_frame());
  std::vector<void*> others;
  const auto take_all_holes = [&] {
    for (int i = 0; i < 200; ++i) {
      constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS;
      void* got = mmap(nullptr, kFrame, PROT_READ | PROT_WRITE, kFlags, -1, 0);
      ASSERT_NE(got, MAP_FAILED);
      std::memset(got, 0x33, kFrame);
      others.push_back(got);
    }
  };
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(memory->map(*range, frame).ok());
    take_all_holes();
    must(memory->unmap(*range));
    take_all_holes();
  }
  ASSERT_TRUE(memory->map(*range, frame).ok());
  std::memset(*range, 0, kFrame);
  must(memory->unmap(*range));
  const std::vector<char> expected(kFrame, 0x33);
  for (void* other : others) {
    ASSERT_TRUE(prober_.readable(other));
    EXPECT_EQ(std::memcmp(other, expected.data(), kFrame), 0);
    munmap(other, kFrame);
  }
}

TEST_P(HostMemoryTest, AFrameCanBeFilledBeforeAnybodySeesIt) {
  auto memory = make(options(1));
  auto range = memory->reserve(kFrame);
  ASSERT_TRUE(range.ok());
  const FrameId frame = must(memory->create_frame());
  std::byte* const home = memory->home(frame);
  ASSERT_EQ(home != nullptr, memory->moves());
  if (home == nullptr) return;
  std::memset(home, 5, kFrame);
  EXPECT_FALSE(prober_.readable(*range));
  ASSERT_TRUE(memory->map(*range, frame).ok());
  EXPECT_EQ((*range)[0], std::byte{5});
  EXPECT_EQ((*range)[kFrame - 1], std::byte{5});
  EXPECT_EQ(memory->home(frame), nullptr) << "it is mapped";
  EXPECT_EQ(memory->home(FrameId{7}), nullptr) << "there is none";
}

TEST(HostMemory, AMovedFrameKeepsItsBytes) {
  HostMemory::Options options;
  options.frame_bytes = kHuge;
  options.max_frames = 1;
  auto memory = make(options);
  if (!memory->moves()) GTEST_SKIP() << "this kernel does not move memory";
  auto range = memory->reserve(2 * kHuge);
  ASSERT_TRUE(range.ok());
  const FrameId frame = must(memory->create_frame());
  ASSERT_TRUE(memory->map(*range, frame).ok());
  for (std::size_t at = 0; at < kHuge; at += 8) std::memcpy(*range + at, &at, 8);
  must(memory->unmap(*range));
  ASSERT_TRUE(memory->map(*range + kHuge, frame).ok());
  for (std::size_t at = 0; at < kHuge; at += 8)
    ASSERT_EQ(std::memcmp(*range + kHuge + at, &at, 8), 0);
}

}  // namespace
}  // namespace taco::device
