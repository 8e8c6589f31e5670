// The grid of fibers itself: what a kernel may rely on, and what it is told of.
#include "support/fiber_grid.h"

#include <gtest/gtest.h>

#include <set>

#include "kernels/cuda/exec.h"

namespace taco::kernels::cuda {
namespace {

using testing::FiberExec;
using testing::FiberGrid;
using testing::KernelMistake;

// Each thread writes its number and reads its neighbour's.
struct NeighbourKernel {
  static constexpr unsigned kThreads = 64;
  struct Shared {
    unsigned numbers[kThreads];
  };
  unsigned* out;

  template <class Exec>
  void operator()(Exec& exec, Shared& shared) const {
    shared.numbers[exec.thread()] = exec.thread();
    exec.barrier();
    out[exec.block() * kThreads + exec.thread()] = shared.numbers[(exec.thread() + 1) % kThreads];
  }
};

std::vector<unsigned> neighbours(std::uint64_t seed, KernelMistake mistake = {}) {
  std::vector<unsigned> out(5 * NeighbourKernel::kThreads);
  EXPECT_TRUE(FiberGrid(seed, mistake)(NeighbourKernel{out.data()}, 5).ok());
  return out;
}

TEST(FiberGrid, ABarrierOrdersAllThreadsOfABlock) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const std::vector<unsigned> out = neighbours(seed);
    for (unsigned i = 0; i < out.size(); ++i) EXPECT_EQ(out[i], (i + 1) % 64) << "seed " << seed;
  }
}

TEST(FiberGrid, ABarrierLeftOutIsNoticedInWhatComesOut) {
  const KernelMistake mistake{KernelMistake::Kind::kBarrierLeftOut, 0, 0};
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    EXPECT_NE(neighbours(seed, mistake), neighbours(seed)) << "seed " << seed;
  }
}

// Which block writes last depends on the order.
struct LastKernel {
  static constexpr unsigned kThreads = 32;
  struct Shared {};
  std::uint32_t* last;

  template <class Exec>
  void operator()(Exec& exec, Shared&) const {
    *last = exec.block() * kThreads + exec.thread();
  }
};

TEST(FiberGrid, SeedsGiveOtherOrdersAndOneSeedTheSame) {
  std::set<std::uint32_t> seen;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    std::uint32_t last = 0, again = 0;
    EXPECT_TRUE(FiberGrid(seed)(LastKernel{&last}, 4).ok());
    EXPECT_TRUE(FiberGrid(seed)(LastKernel{&again}, 4).ok());
    EXPECT_EQ(last, again);
    seen.insert(last);
  }
  EXPECT_GT(seen.size(), 10u);
}

struct SumsKernel {
  static constexpr unsigned kThreads = 128;
  struct Shared {
    BlockSumMemory<std::uint32_t> sums;
  };
  std::uint32_t* out;
  std::uint32_t* all;

  template <class Exec>
  void operator()(Exec& exec, Shared& shared) const {
    for (unsigned turn = 0; turn < 4; ++turn) {
      const auto sum = block_sum<kThreads>(exec, shared.sums, turn, exec.thread() + turn);
      if (turn == 3) out[exec.thread()] = sum.before;
      if (exec.thread() == 0) exec.atomic_add(all, sum.total);
    }
    const bool odd = exec.thread() % 2 == 1;
    if (count_up_to_lane(exec, odd) != (exec.thread() % kLanes + 1) / 2) out[exec.thread()] = 0;
  }
};

TEST(FiberGrid, SumsOfWarpsAndBlocksAreThoseOfNumbers) {
  std::vector<std::uint32_t> out(SumsKernel::kThreads);
  std::uint32_t all = 0;
  ASSERT_TRUE(FiberGrid(7)(SumsKernel{out.data(), &all}, 1).ok());
  for (unsigned i = 0; i < out.size(); ++i) EXPECT_EQ(out[i], i * (i - 1) / 2 + 3 * i);
  EXPECT_EQ(all, 4 * (128 * 127 / 2) + 128 * (1 + 2 + 3));
}

enum class Fault { kNotAllAtBarrier, kWithoutItself, kOtherLanes, kFromOutside, kUnaligned };

struct FaultyKernel {
  static constexpr unsigned kThreads = 32;
  struct Shared {
    Pack<std::uint32_t, 4> packs[2];
  };
  Fault fault;

  template <class Exec>
  void operator()(Exec& exec, Shared& shared) const {
    switch (fault) {
      case Fault::kNotAllAtBarrier:
        if (exec.thread() != 5) exec.barrier();
        break;
      case Fault::kWithoutItself:
        exec.ballot(0x7FFF'FFFF, true);
        break;
      case Fault::kOtherLanes:
        exec.ballot(exec.thread() == 5 ? 0x20 : kAllLanes, true);
        break;
      case Fault::kFromOutside:
        exec.shuffle(kAllLanes, 1u, exec.thread() + 1);
        break;
      case Fault::kUnaligned:
        exec.load(pack_of<4>(&shared.packs[0].at[exec.thread() == 5 ? 1 : 0]));
        break;
    }
  }
};

TEST(FiberGrid, SaysWhichThreadDoesWhatNoGpuAllows) {
  const auto failure = [](Fault fault) { return FiberGrid(3)(FaultyKernel{fault}, 1).message(); };
  EXPECT_EQ(failure(Fault::kNotAllAtBarrier),
            "nobody can go on: 31 threads wait at a barrier, 0 for the rest of their warp, and 1 "
            "have ended");
  EXPECT_EQ(failure(Fault::kWithoutItself),
            "block 0, thread 31 calls an operation of its warp without itself");
  EXPECT_NE(failure(Fault::kOtherLanes).find("another operation than the rest of its warp"),
            std::string::npos);
  EXPECT_EQ(failure(Fault::kFromOutside), "block 0, thread 31 shuffles from lane 32");
  EXPECT_EQ(failure(Fault::kUnaligned),
            "block 0, thread 5 reads or writes at an address that is no multiple of 16");
}

}  // namespace
}  // namespace taco::kernels::cuda
