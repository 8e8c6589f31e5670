// Kernels with a mistake each: one barrier left out, or one lane missing in the mask of an
// operation of a warp. Whatever the place, some order of threads shows it, so nothing in a kernel
// is there in vain, and the tests of the kernels would notice its absence.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <numeric>
#include <random>
#include <string>

#include "kernels/cuda/blocks_of_gradient.h"
#include "kernels/cuda/checksum.h"
#include "kernels/cuda/index_deltas.h"
#include "kernels/kernels.h"
#include "kernels/select.h"
#include "support/fiber_grid.h"

namespace taco::kernels::cuda {
namespace {

using taco::testing::FiberGrid;
using taco::testing::KernelCalls;
using taco::testing::KernelMistake;
using Kind = KernelMistake::Kind;

// True if the kernels that it runs gave what they should.
using Trial = std::function<bool(const FiberGrid&)>;

constexpr std::uint64_t kSeeds = 12;
// Later calls of a thread are those of a loop that has gone round before.
constexpr unsigned kMaxCalls = 24;

// A kernel with a mistake may write anywhere, or never end: it runs in a process of its own.
bool fails(const Trial& trial, const KernelMistake& mistake, std::uint64_t seed) {
  const pid_t child = fork();
  if (child == 0) {
    const rlimit none{0, 0};
    setrlimit(RLIMIT_CORE, &none);
    close(STDERR_FILENO);
    alarm(60);
    _exit(trial(FiberGrid(seed, mistake)) ? 0 : 1);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return status != 0;
}
bool noticed(const std::vector<Trial>& trials, const KernelMistake& mistake) {
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    for (const Trial& trial : trials) {
      if (fails(trial, mistake, seed)) return true;
    }
  }
  return false;
}

// In one of the launches that each trial makes.
void expect_all_mistakes_noticed(std::size_t launch, const std::vector<Trial>& trials) {
  KernelCalls calls;
  for (const Trial& trial : trials) {
    const FiberGrid right(1);
    ASSERT_TRUE(trial(right));
    const KernelCalls& own = right.launches()[launch];
    calls.barriers = std::max(calls.barriers, std::min(own.barriers, kMaxCalls));
    calls.warp_calls = std::max(calls.warp_calls, std::min(own.warp_calls, kMaxCalls));
  }
  EXPECT_GT(calls.barriers + calls.warp_calls, 0u);
  for (unsigned call = 0; call < calls.barriers; ++call) {
    EXPECT_TRUE(noticed(trials, {Kind::kBarrierLeftOut, launch, call}))
        << "kernel " << launch << " without its barrier " << call;
  }
  for (unsigned call = 0; call < calls.warp_calls; ++call) {
    EXPECT_TRUE(noticed(trials, {Kind::kLaneLeftOut, launch, call}))
        << "kernel " << launch << " without a lane in operation " << call;
  }
}

testing::BlocksOfGradient gradient(std::size_t count, std::uint32_t k) {
  std::mt19937_64 random(1);
  std::normal_distribution<float> normal;
  testing::BlocksOfGradient of{
      .count = count, .block = static_cast<std::uint32_t>(count), .k = k, .last_k = k};
  for (std::size_t i = 0; i < count; ++i) {
    of.residual.push_back(normal(random));
    of.gradient.push_back(normal(random));
  }
  return of;
}

// The elements that are not below the threshold, block by block in the order of their indices, as
// the workspace has them after the passes over all.
struct Lists {
  std::vector<std::uint32_t> thresholds, indices;
  bool operator==(const Lists&) const = default;
};

Lists lists_of(const SelectArrays& of) {
  Lists lists;
  for (std::uint32_t b = 0; b < of.blocks; ++b) {
    lists.thresholds.push_back(of.thresholds[b]);
    std::uint32_t found = 0;
    for (std::uint32_t tile = b * of.tiles_of_block; tile < (b + 1) * of.tiles_of_block; ++tile) {
      for (std::uint32_t i = 0; i < of.tile_found[tile]; ++i) {
        const std::uint32_t place = of.tile_first[tile] + i;
        if (place >= of.capacity) return lists;
        lists.indices.push_back(of.list_indices[b * of.capacity + place]);
      }
      found += of.tile_found[tile];
    }
    if (found != of.found[b]) lists.indices.clear();
  }
  return lists;
}

Lists expected_lists(const testing::BlocksOfGradient& of, const SelectArrays& arrays) {
  Lists lists;
  for (std::size_t i = 0; i < of.count; ++i) {
    const std::uint32_t threshold = arrays.thresholds[i / of.block];
    if (i % of.block == 0) lists.thresholds.push_back(threshold);
    if (magnitude_of(of.residual[i] + of.gradient[i]) < threshold) continue;
    lists.indices.push_back(static_cast<std::uint32_t>(i % of.block));
  }
  return lists;
}

// A bad guess or a list that lacks something makes a selection slow, not wrong: so these two
// kernels are looked at by themselves.
TEST(CudaMistakes, OfThePassesOverAllOfASelectionAreNoticed) {
  testing::BlocksOfGradient of = gradient(20000, 60);
  of.block = 10000;
  std::vector<std::uint32_t> thresholds;  // of the first run
  const Trial trial = [&](const FiberGrid& grid) {
    testing::Outcome out;
    std::vector<float> residual, momentum;
    const SelectArguments arguments = of.arguments(out, false, residual, momentum);
    std::vector<std::uint32_t> workspace(select_workspace_bytes(arguments) / 4);
    const SelectArrays arrays = lay_out(arguments, workspace.data());
    if (!grid(ThresholdKernel<Feedback::kGradient>{arrays}, 2).ok()) return false;
    if (!grid(CollectKernel<Feedback::kGradient>{arrays}, 2 * arrays.tiles_of_block).ok()) {
      return false;
    }
    const Lists lists = lists_of(arrays);
    if (thresholds.empty()) thresholds = lists.thresholds;
    return lists == expected_lists(of, arrays) && lists.thresholds == thresholds;
  };
  expect_all_mistakes_noticed(0, {trial});
  expect_all_mistakes_noticed(1, {trial});
}

Trial selection(const testing::BlocksOfGradient& of) {
  return [of, expected = of.by_host()](const FiberGrid& grid) {
    testing::Outcome out;
    return of.select(grid, false, out).ok() && same(of, out, expected, false);
  };
}

// A number that is `steps` of its last place, or of a thousand such, above 2.
float above_two(std::uint64_t steps, unsigned thousands = 0) {
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(2.0f) +
                              (static_cast<std::uint32_t>(steps) << 10 * thousands));
}

// The kernel that chooses is the third. There are more tiles here than a warp has lanes.
TEST(CudaMistakes, OfTheChoiceFromAListAreNoticed) {
  testing::BlocksOfGradient close = gradient(140000, 900);
  for (std::size_t i = 0; i < close.count; ++i) {
    close.residual[i] = i % 50 == 1 ? above_two(i * i % 997) : 0.01f;
    close.gradient[i] = 0;
  }
  expect_all_mistakes_noticed(2, {selection(gradient(9000, 600)), selection(close)});
}

// Most is above the guess, so that the block itself is gone through. 99 are larger than the rest,
// by the upper, the middle or the last digit: were one of them not counted, too many would be
// taken.
TEST(CudaMistakes, OfTheChoiceWithoutAListAreNoticed) {
  testing::BlocksOfGradient upper = gradient(8500, 100);
  upper.gradient.assign(upper.count, 0);
  testing::BlocksOfGradient middle = upper, last = upper;
  std::vector<std::size_t> places(upper.count);
  std::iota(places.begin(), places.end(), std::size_t{0});
  std::shuffle(places.begin(), places.end(), std::mt19937_64(4));
  for (std::size_t i = 0; i < upper.count; ++i) {
    const bool larger = places[i] < 99;
    upper.residual[i] = larger ? std::ldexp(2.0f, static_cast<int>(1 + i % 100)) : 2;
    middle.residual[i] = larger ? -above_two(1 + i % 100, 1) : 2;
    last.residual[i] = larger ? above_two(1 + i % 100) : -2;
  }
  expect_all_mistakes_noticed(2, {selection(upper), selection(middle), selection(last)});
}

TEST(CudaMistakes, OfTheChecksumAreNoticed) {
  std::vector<std::uint64_t> words(40000 / 8);
  std::mt19937_64 random(2);
  for (std::uint64_t& word : words) word = random();
  const std::uint32_t expected = crc32c(1, words.data(), 40000);
  const Trial trial = [&](const FiberGrid& grid) {
    std::uint32_t checksum = 0;
    std::vector<std::uint32_t> workspace(kMaxChecksumParts);
    return crc32c_on(grid, 1, words.data(), 40000, &checksum, workspace.data()).ok() &&
           checksum == expected;
  };
  expect_all_mistakes_noticed(0, {trial});
}

TEST(CudaMistakes, OfTheEndOfTheChecksumAreNoticed) {
  std::vector<std::uint32_t> sums(kMaxChecksumParts);
  std::mt19937_64 random(3);
  for (std::uint32_t& sum : sums) sum = static_cast<std::uint32_t>(random());
  constexpr std::uint32_t kShift = crc_shift(16384);
  std::uint32_t expected = 0;
  for (const std::uint32_t sum : sums) expected = crc_product(expected, kShift) ^ sum;
  const Trial trial = [&](const FiberGrid& grid) {
    std::uint32_t checksum = 0;
    const ChecksumEndKernel kernel{sums.data(), kMaxChecksumParts, kShift, 0, nullptr,
                                   0,           &checksum};
    return grid(kernel, 1).ok() && checksum == ~expected;
  };
  expect_all_mistakes_noticed(0, {trial});
}

TEST(CudaMistakes, OfTheCodecOfIndicesAreNoticed) {
  constexpr std::uint32_t kCount = 900;
  std::vector<std::uint32_t> indices(kCount);
  for (std::uint32_t j = 0; j < kCount; ++j) indices[j] = j * j;  // gaps of 1 to 8 bytes
  constexpr std::uint32_t kBlock = kCount * kCount;
  constexpr std::size_t kBytes = max_delta_bytes(kCount, kBlock);
  std::vector<std::uint8_t> expected(kBytes);
  expected.resize(encode_deltas(expected.data(), indices.data(), kCount));
  const Trial trial = [&](const FiberGrid& grid) {
    std::vector<std::uint8_t> bytes(kBytes);
    std::vector<std::uint32_t> decoded(kCount);
    std::uint32_t length = 0, valid = 0;
    DeltaArguments of{.blocks = 1,
                      .block = kBlock,
                      .last_block = kBlock,
                      .k = kCount,
                      .last_k = kCount,
                      .stride = bytes.size(),
                      .bytes = bytes.data(),
                      .lengths = &length,
                      .indices = indices.data(),
                      .valid = &valid};
    if (!encode_deltas_on(grid, of).ok() || length != expected.size()) return false;
    bytes.resize(length);
    if (bytes != expected) return false;
    of.indices = decoded.data();
    return decode_deltas_on(grid, of).ok() && valid == 1 && decoded == indices;
  };
  expect_all_mistakes_noticed(0, {trial});
  expect_all_mistakes_noticed(1, {trial});
}

}  // namespace
}  // namespace taco::kernels::cuda
