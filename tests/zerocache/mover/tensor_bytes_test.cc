#include "zerocache/mover/tensor_bytes.h"

#include <gtest/gtest.h>

#include <random>
#include <utility>
#include <vector>

#include "support/moving_pages.h"

namespace taco::zerocache {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kBytes = 5 * kPage;
const PlacedTensor kTensor = {"tensor", kBytes, 3 * kPage + 640, 1};

TEST(TensorBytes, AreThoseThatWereWrittenAndZerosElsewhere) {
  for (std::uint32_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    testing::MovingPages pages(kPage);
    std::vector<std::byte> expected(kBytes);
    for (int i = 0; i < 4; ++i) {
      const std::size_t from = random() % kBytes;
      std::vector<std::byte> part(random() % (kBytes - from + 1));
      for (std::byte& byte : part) byte = std::byte(random());
      std::copy(part.begin(), part.end(), expected.begin() + static_cast<std::ptrdiff_t>(from));
      ASSERT_TRUE(write_bytes(pages, kPage, kTensor, Tier::kHost, from, part).ok());
      std::vector<std::byte> all(kBytes, std::byte{0x55});
      ASSERT_TRUE(read_bytes(pages, kPage, kTensor, Tier::kDevice, 0, all).ok());
      ASSERT_TRUE(all == expected);
      const std::size_t first = random() % kBytes;
      std::vector<std::byte> some(random() % (kBytes - first + 1));
      ASSERT_TRUE(read_bytes(pages, kPage, kTensor, Tier::kHost, first, some).ok());
      ASSERT_TRUE(std::equal(some.begin(), some.end(),
                             expected.begin() + static_cast<std::ptrdiff_t>(first)));
    }
  }
}

TEST(TensorBytes, APageThatCannotBeHadIsAnErrorAndNothingStaysHeld) {
  testing::MovingPages pages(kPage);
  const std::vector<std::byte> bytes(kBytes, std::byte{7});
  pages.fail_at(2);
  EXPECT_EQ(write_bytes(pages, kPage, kTensor, Tier::kHost, 0, bytes).code(), Code::kResource);
  EXPECT_EQ(pages.open(), 0u);
}

TEST(TensorBytes, AWriteSaysWhetherItHasChangedAnything) {
  const std::vector<std::byte> bytes(kBytes, std::byte{7});
  // The tensor begins within a page, the second is written whole.
  for (const auto& [failing, spoilt_then] : {std::pair(0, false), std::pair(1, true)}) {
    testing::MovingPages pages(kPage);
    ASSERT_TRUE(write_bytes(pages, kPage, kTensor, Tier::kHost, 0, bytes).ok());
    pages.fail_at(static_cast<std::size_t>(failing));
    bool spoilt = !spoilt_then;
    EXPECT_FALSE(write_bytes(pages, kPage, kTensor, Tier::kHost, 0, bytes, &spoilt).ok());
    EXPECT_EQ(spoilt, spoilt_then);
    EXPECT_TRUE(write_bytes(pages, kPage, kTensor, Tier::kHost, 0, bytes, &spoilt).ok());
    EXPECT_FALSE(spoilt);
  }
  testing::MovingPages pages(kPage);
  ASSERT_TRUE(write_bytes(pages, kPage, kTensor, Tier::kHost, 0, bytes).ok());
  pages.fail_at(0);
  bool spoilt = false;
  const std::size_t second = kPage - 640;
  EXPECT_FALSE(write_bytes(pages, kPage, kTensor, Tier::kHost, second,
                           std::span(bytes).first(kPage), &spoilt)
                   .ok());
  EXPECT_TRUE(spoilt) << "what the page held is gone";
}

}  // namespace
}  // namespace taco::zerocache
