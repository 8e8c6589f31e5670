#include "base/random.h"

#include <gtest/gtest.h>
#include <sys/syscall.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <vector>

#include "support/refused_call.h"

namespace taco {
namespace {

TEST(Random, FillsAllOfWhatItIsGivenAndNothingElse) {
  std::vector<std::byte> bytes(5000, std::byte{0});
  fill_random(std::span(bytes).first(4096));
  // 64 bytes that are zero by chance: one in 2^512.
  for (std::size_t at = 0; at < 4096; at += 64) {
    EXPECT_TRUE(std::any_of(bytes.begin() + at, bytes.begin() + at + 64, [](std::byte byte) {
      return byte != std::byte{0};
    })) << at;
  }
  EXPECT_TRUE(std::all_of(bytes.begin() + 4096, bytes.end(),
                          [](std::byte byte) { return byte == std::byte{0}; }));
}

TEST(Random, GivesOtherValuesEachTime) {
  using Secret = std::array<std::byte, 32>;
  EXPECT_NE(random_value<Secret>(), random_value<Secret>());
}

TEST(Random, WhereThereIsNoneTheProcessEndsAndSaysSo) {
  EXPECT_DEATH(
      {
        if (testing::refuse_call(SYS_getrandom)) (void)random_value<std::uint64_t>();
      },
      "gives this process no random numbers \\(getrandom: Operation not permitted\\)");
}

}  // namespace
}  // namespace taco
