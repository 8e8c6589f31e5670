#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "kernels/kernels.h"

namespace taco::kernels {
namespace {

using CopyFn = void (*)(void* to, const void* from, std::size_t bytes);

class Copies : public ::testing::TestWithParam<CopyFn> {};

TEST_P(Copies, MoveEveryByteAndNoOtherWhateverTheAlignment) {
  constexpr std::size_t kMargin = 128;
  for (const std::size_t bytes : {0, 1, 63, 1440, 4095, 4096, 4097, 6144, 70'001}) {
    for (const std::size_t to : {0, 1, 17, 63}) {
      for (const std::size_t from : {0, 5, 64}) {
        std::vector<std::byte> source(from + bytes + 1), target(bytes + to + 2 * kMargin);
        for (std::size_t i = 0; i < source.size(); ++i) source[i] = std::byte(i * 31 + 7);
        std::vector<std::byte> expected = target;
        std::copy_n(source.begin() + static_cast<std::ptrdiff_t>(from), bytes,
                    expected.begin() + static_cast<std::ptrdiff_t>(kMargin + to));
        GetParam()(target.data() + kMargin + to, source.data() + from, bytes);
        ASSERT_EQ(target, expected) << bytes << " bytes to " << to << " from " << from;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ahead, Copies, ::testing::Values(copy, copy_cold));

TEST(ReduceAhead, EqualsThePlainReductionWhereverTheResultGoes) {
  for (const std::size_t count : {0, 1, 511, 2047, 2048, 2049, 50'001}) {
    for (const Dtype dtype : {Dtype::kF32, Dtype::kC128, Dtype::kU8}) {
      const ReduceFn sum = reduce_function(ReduceOp::kSum, dtype);
      const std::size_t bytes = count * size_of(dtype);
      std::vector<std::byte> a(bytes + 1), b(bytes + 1);
      for (std::size_t i = 0; i < bytes; ++i) {
        a[i] = std::byte(i % 61);
        b[i] = std::byte(i % 53);
      }
      std::vector<std::byte> expected(bytes + 1, std::byte{77});
      sum(expected.data(), a.data(), b.data(), count);
      std::vector<std::byte> apart(bytes + 1, std::byte{77}), first = a, second = b;
      first.back() = second.back() = std::byte{77};
      reduce(sum, apart.data(), a.data(), b.data(), count, size_of(dtype));
      reduce(sum, first.data(), first.data(), b.data(), count, size_of(dtype));
      reduce(sum, second.data(), a.data(), second.data(), count, size_of(dtype));
      EXPECT_EQ(apart, expected) << count << " of " << name_of(dtype);
      EXPECT_EQ(first, expected) << count << " of " << name_of(dtype);
      EXPECT_EQ(second, expected) << count << " of " << name_of(dtype);
    }
  }
}

}  // namespace
}  // namespace taco::kernels
