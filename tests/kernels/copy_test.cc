#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "kernels/kernels.h"

namespace taco::kernels {
namespace {

TEST(CopyCold, MovesEveryByteAndNoOtherWhateverTheAlignment) {
  constexpr std::size_t kMargin = 128;
  for (const std::size_t bytes : {0, 1, 63, 4095, 4096, 4097, 70'001}) {
    for (const std::size_t to : {0, 1, 17, 63}) {
      for (const std::size_t from : {0, 5, 64}) {
        std::vector<std::byte> source(from + bytes + 1), target(bytes + to + 2 * kMargin);
        for (std::size_t i = 0; i < source.size(); ++i) source[i] = std::byte(i * 31 + 7);
        std::vector<std::byte> expected = target;
        std::copy_n(source.begin() + static_cast<std::ptrdiff_t>(from), bytes,
                    expected.begin() + static_cast<std::ptrdiff_t>(kMargin + to));
        copy_cold(target.data() + kMargin + to, source.data() + from, bytes);
        ASSERT_EQ(target, expected) << bytes << " bytes to " << to << " from " << from;
      }
    }
  }
}

}  // namespace
}  // namespace taco::kernels
