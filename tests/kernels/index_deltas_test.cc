// Gaps as bytes: what is written comes back, and no string of bytes yields indices that do not
// ascend or that lie outside.
#include <gtest/gtest.h>

#include <vector>

#include "kernels/samples.h"
#include "kernels/select.h"

namespace taco::kernels {
namespace {

using testing::Random;
using Indices = std::vector<std::uint32_t>;
using Coded = std::vector<std::uint8_t>;

// Into exactly the room that is promised to be enough.
Coded encoded(const Indices& indices, std::size_t n) {
  const std::size_t most = max_delta_bytes(indices.size(), n);
  constexpr std::uint8_t kGuard = 0xA5;
  Coded bytes(most + 16, kGuard);
  const std::size_t length = encode_deltas(bytes.data(), indices.data(), indices.size());
  EXPECT_LE(length, most);
  for (std::size_t i = most; i < bytes.size(); ++i) EXPECT_EQ(bytes[i], kGuard);
  bytes.resize(length);
  return bytes;
}

bool decodes(const Coded& bytes, std::size_t k, std::size_t n, Indices& indices) {
  constexpr std::uint32_t kGuard = 0xDEAD'BEEF;
  indices.assign(k + 1, kGuard);
  const bool valid = decode_deltas(indices.data(), k, bytes.data(), bytes.size(), n);
  EXPECT_EQ(indices.back(), kGuard) << "more indices written than there is room for";
  indices.pop_back();
  return valid;
}
bool decodes(const Coded& bytes, std::size_t k, std::size_t n) {
  Indices indices;
  return decodes(bytes, k, n, indices);
}

void comes_back(const Indices& indices, std::size_t n) {
  const Coded bytes = encoded(indices, n);
  Indices again;
  ASSERT_TRUE(decodes(bytes, indices.size(), n, again));
  ASSERT_EQ(again, indices);
}

TEST(IndexDeltas, AreTheGapsAndASkipIsItsOwnByte) {
  EXPECT_EQ(encoded({0, 1, 2}, 3), (Coded{0, 0, 0}));
  EXPECT_EQ(encoded({5, 7}, 8), (Coded{5, 1}));
  EXPECT_EQ(encoded({254}, 255), (Coded{254}));
  EXPECT_EQ(encoded({255}, 256), (Coded{255, 0}));
  EXPECT_EQ(encoded({3, 3 + 1 + 510 + 9}, 600), (Coded{3, 255, 255, 9}));
  EXPECT_EQ(encoded({}, 0), Coded{});
}

TEST(IndexDeltas, ComeBackAtEveryDensity) {
  Random random(1);
  for (const std::size_t n : {1, 2, 254, 255, 256, 511, 5000, 131'072}) {
    for (const std::uint64_t one_in : {1, 2, 50, 100, 300, 1000, 100'000}) {
      Indices indices;
      for (std::uint32_t i = 0; i < n; ++i) {
        if (random() % one_in == 0) indices.push_back(i);
      }
      comes_back(indices, n);
    }
    comes_back({static_cast<std::uint32_t>(n - 1)}, n);
  }
}

TEST(IndexDeltas, ComeBackWithGapsAroundTheSkip) {
  Random random(2);
  for (int round = 0; round < 2000; ++round) {
    Indices indices;
    std::uint32_t next = 0;
    const std::size_t k = random() % 12;
    for (std::size_t j = 0; j < k; ++j) {
      next += static_cast<std::uint32_t>(255 * (random() % 12) + (random() % 5 + 253) % 256);
      indices.push_back(next++);
    }
    comes_back(indices, next);
  }
}

TEST(IndexDeltas, BytesThatAreNotExactlyTheIndicesAreRefused) {
  EXPECT_TRUE(decodes({5, 1}, 2, 8));
  EXPECT_FALSE(decodes({5, 1}, 2, 7)) << "the last index is n";
  EXPECT_FALSE(decodes({5, 1}, 1, 8)) << "a byte too many";
  EXPECT_FALSE(decodes({5, 1}, 3, 8)) << "an index too few";
  EXPECT_FALSE(decodes({5, 255}, 1, 1000)) << "a skip that leads nowhere";
  EXPECT_FALSE(decodes({5, 255}, 2, 1000)) << "the last index is not ended";
  EXPECT_FALSE(decodes({255, 255, 255}, 1, 1000));
  EXPECT_FALSE(decodes({}, 1, 8));
  EXPECT_TRUE(decodes({}, 0, 8));
  EXPECT_FALSE(decodes({0}, 0, 8));
  EXPECT_FALSE(decodes({0}, 1, 0));
  EXPECT_FALSE(decodes(Coded(1 << 20, 255), 5, 1000)) << "skips without an end";
}

TEST(IndexDeltas, AnyBytesAreRefusedOrAreTheOneCodingOfTheirIndices) {
  Random random(3);
  int valid = 0;
  for (int round = 0; round < 20'000; ++round) {
    Coded bytes(random() % 20);
    for (std::uint8_t& byte : bytes) {
      byte = static_cast<std::uint8_t>(random() % 3 == 0 ? 255 : random() % 256);
    }
    const std::size_t k = random() % 16, n = random() % 4000;
    Indices indices;
    if (!decodes(bytes, k, n, indices)) continue;
    ++valid;
    for (std::size_t j = 0; j < k; ++j) {
      ASSERT_LT(indices[j], n);
      if (j > 0) {
        ASSERT_LT(indices[j - 1], indices[j]);
      }
    }
    ASSERT_EQ(encoded(indices, n), bytes);
  }
  EXPECT_GT(valid, 100);
}

}  // namespace
}  // namespace taco::kernels
