// Tests what other threads of the process see, and can do, while memory moves.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <thread>

#include "device/host_memory.h"
#include "support/reachable.h"

namespace taco::device {
namespace {

constexpr std::size_t kFrame = std::size_t{64} << 10;
constexpr int kMoves = 2000;

class HostMemoryThreads : public ::testing::Test {
 protected:
  void SetUp() override {
    HostMemory::Options options;
    options.frame_bytes = kFrame;
    options.max_frames = 1;
    auto memory = HostMemory::create(options);
    ASSERT_TRUE(memory.ok());
    memory_ = std::move(*memory);
    if (!memory_->moves()) GTEST_SKIP() << "this kernel does not move memory";
    auto range = memory_->reserve(kFrame);
    ASSERT_TRUE(range.ok());
    address_ = *range;
    auto frame = memory_->create_frame();
    ASSERT_TRUE(frame.ok());
    frame_ = *frame;
  }

  void move_often() {
    for (int i = 0; i < kMoves; ++i) {
      ASSERT_TRUE(memory_->map(address_, frame_).ok());
      ASSERT_TRUE(memory_->unmap(address_).ok());
    }
  }

  std::unique_ptr<HostMemory> memory_;
  std::byte* address_ = nullptr;
  FrameId frame_{};
};

TEST_F(HostMemoryThreads, AnAddressHasItsBytesOrCannotBeReadAtEveryMoment) {
  ASSERT_TRUE(memory_->map(address_, frame_).ok());
  std::memset(address_, 0x5A, kFrame);
  ASSERT_TRUE(memory_->unmap(address_).ok());
  std::atomic<bool> end{false};
  std::atomic<int> seen{0}, wrong{0};
  std::thread reader([&, address = address_] {
    testing::Prober prober;
    while (!end) {
      std::uint64_t value = 0;
      if (!prober.read_at(address, &value, sizeof value)) continue;
      ++seen;
      wrong += value != 0x5A5A5A5A5A5A5A5A;
    }
  });
  do {
    move_often();
  } while (seen == 0);
  end = true;
  reader.join();
  EXPECT_EQ(wrong, 0) << "of " << seen << " reads";
}

}  // namespace
}  // namespace taco::device
