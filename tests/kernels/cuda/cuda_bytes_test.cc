// The codec of indices, the checksum and pages for GPUs, thread by thread on the host.
#include <gtest/gtest.h>

#include <random>

#include "kernels/cuda/ascending.h"
#include "kernels/cuda/checksum.h"
#include "kernels/cuda/index_deltas.h"
#include "kernels/cuda/pages.h"
#include "kernels/kernels.h"
#include "support/fiber_grid.h"

namespace taco::kernels::cuda {
namespace {

using taco::testing::FiberGrid;
using Random = std::mt19937_64;
using Numbers = std::vector<std::uint32_t>;
using cuda::testing::ascending;

// Blocks of indices, and room for what becomes of them.
struct Lists {
  std::uint32_t block, last_block, k, last_k, blocks;
  Numbers indices, lengths, valid;
  std::vector<std::uint8_t> bytes;

  Lists(std::uint32_t n, std::uint32_t last_n, std::uint32_t per, std::uint32_t last_per,
        std::uint32_t count, Random& random)
      : block(n), last_block(last_n), k(per), last_k(last_per), blocks(count) {
    for (std::uint32_t b = 0; b < blocks; ++b) {
      const bool last = b + 1 == blocks;
      const Numbers own = ascending(random, last ? last_block : block, last ? last_k : k);
      indices.insert(indices.end(), own.begin(), own.end());
    }
    lengths.resize(blocks);
    valid.resize(blocks);
    bytes.resize(blocks * stride());
  }
  std::size_t stride() const { return max_delta_bytes(k, block) + 3; }
  DeltaArguments arguments() {
    return {.blocks = blocks,
            .block = block,
            .last_block = last_block,
            .k = k,
            .last_k = last_k,
            .stride = stride(),
            .bytes = bytes.data(),
            .lengths = lengths.data(),
            .indices = indices.data(),
            .valid = valid.data()};
  }
};

TEST(CudaDeltas, GivesTheHostsBytesAndFindsTheIndicesInThem) {
  Random random(1);
  std::uint64_t seed = 0;
  for (const std::uint32_t k : {1, 7, 255, 256, 300, 1000}) {
    for (const std::uint32_t n : {1000, 70000}) {
      Lists lists(n, n / 2 + 500, k, (k + 1) / 2, 3, random);
      const Numbers indices = lists.indices;
      ASSERT_TRUE(encode_deltas_on(FiberGrid(++seed), lists.arguments()).ok());
      for (std::uint32_t b = 0; b < 3; ++b) {
        std::vector<std::uint8_t> expected(lists.stride());
        const std::uint32_t own = b == 2 ? lists.last_k : k;
        expected.resize(encode_deltas(expected.data(), indices.data() + b * k, own));
        const std::uint8_t* const begin = lists.bytes.data() + b * lists.stride();
        EXPECT_EQ(std::vector<std::uint8_t>(begin, begin + lists.lengths[b]), expected)
            << k << " of " << n << ", seed " << seed;
      }
      lists.indices.assign(indices.size(), 0);
      ASSERT_TRUE(decode_deltas_on(FiberGrid(++seed), lists.arguments()).ok());
      EXPECT_EQ(lists.indices, indices) << "seed " << seed;
      EXPECT_EQ(lists.valid, Numbers(3, 1)) << "seed " << seed;
    }
  }
}

// Bytes of any kind, of which the two sides must think alike.
TEST(CudaDeltas, RefusesWhatTheHostRefuses) {
  Random random(2);
  std::size_t refused = 0;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    Lists lists(2000, 2000, 40, 40, 1, random);
    lists.lengths[0] =
        static_cast<std::uint32_t>(encode_deltas(lists.bytes.data(), lists.indices.data(), 40));
    if (seed % 2 == 1) lists.bytes[random() % lists.lengths[0]] ^= 1 << random() % 8;
    if (seed % 3 == 1) lists.lengths[0] = static_cast<std::uint32_t>(random() % lists.stride());
    if (seed % 5 == 1) lists.bytes[random() % lists.stride()] = 255;
    Numbers expected(40);
    const bool fine =
        decode_deltas(expected.data(), 40, lists.bytes.data(), lists.lengths[0], 2000);
    ASSERT_TRUE(decode_deltas_on(FiberGrid(seed), lists.arguments()).ok());
    EXPECT_EQ(lists.valid[0] != 0, fine) << "seed " << seed;
    EXPECT_TRUE(!fine || lists.indices == expected) << "seed " << seed;
    refused += fine ? 0 : 1;
  }
  EXPECT_GT(refused, 50u);
  EXPECT_LT(refused, 250u);
}

std::uint32_t checksum(std::uint64_t seed, std::uint32_t crc, const void* data, std::size_t bytes) {
  std::uint32_t result = 0;
  Numbers workspace(kMaxChecksumParts);
  const Status status = crc32c_on(FiberGrid(seed), crc, data, bytes, &result, workspace.data());
  EXPECT_TRUE(status.ok()) << status.message();
  return result;
}

TEST(CudaChecksum, IsTheHostsForAnyLengthAndAddress) {
  Random random(3);
  std::vector<std::uint8_t> bytes(70000);
  for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random());
  std::uint64_t seed = 0;
  for (const std::size_t length : {0, 1, 3, 15, 16, 17, 31, 100, 4095, 4096, 4097, 20000, 65537}) {
    for (const std::size_t shift : {0, 1, 7, 15}) {
      const auto before = static_cast<std::uint32_t>(seed * 0x9E3779B9u);
      EXPECT_EQ(checksum(++seed, before, bytes.data() + shift, length),
                crc32c(before, bytes.data() + shift, length))
          << length << " bytes from " << shift << ", seed " << seed;
    }
  }
}

TEST(CudaChecksum, GoesOnWhereAnotherEnded) {
  const std::vector<std::uint8_t> bytes(5000, 'x');
  const std::uint32_t first = checksum(1, 0, bytes.data(), 1234);
  EXPECT_EQ(checksum(2, first, bytes.data() + 1234, 5000 - 1234),
            crc32c(0, bytes.data(), bytes.size()));
}

TEST(CudaPages, ComeTogetherAndGoBackToTheirPlaces) {
  constexpr std::size_t kPage = 20000;
  constexpr std::uint32_t kApart = 9;
  Random random(4);
  std::vector<std::uint64_t> apart(kApart * kPage / 8);
  for (std::uint64_t& word : apart) word = random();
  const Numbers pages = {7, 0, 8, 3};
  std::vector<std::uint64_t> together(pages.size() * kPage / 8), back(apart.size(), 1);
  std::uint32_t refused = 0;
  ASSERT_TRUE(move_pages<true>(FiberGrid(1), together.data(), apart.data(), pages.data(), 4, kPage,
                               kApart, &refused)
                  .ok());
  ASSERT_TRUE(move_pages<false>(FiberGrid(2), back.data(), together.data(), pages.data(), 4, kPage,
                                kApart, &refused)
                  .ok());
  EXPECT_EQ(refused, 0u);
  for (std::size_t page = 0; page < kApart; ++page) {
    const bool moved = std::find(pages.begin(), pages.end(), page) != pages.end();
    for (std::size_t i = page * kPage / 8; i < (page + 1) * kPage / 8; ++i) {
      ASSERT_EQ(back[i], moved ? apart[i] : 1) << "page " << page;
    }
  }
}

TEST(CudaPages, RefusesNumbersThatAreNoPages) {
  std::vector<std::uint64_t> apart(2 * 4, 5), together(3 * 4, 6);
  const Numbers pages = {1, 2, 0xFFFF'FFFF};
  std::uint32_t refused = 0;
  ASSERT_TRUE(move_pages<true>(FiberGrid(1), together.data(), apart.data(), pages.data(), 3, 32, 2,
                               &refused)
                  .ok());
  EXPECT_EQ(refused, 2u);
  EXPECT_EQ(together, (std::vector<std::uint64_t>{5, 5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 6}));
  EXPECT_EQ(move_pages<true>(FiberGrid(1), together.data(), apart.data(), pages.data(), 3, 40, 2,
                             &refused)
                .message(),
            "pages of 40 bytes cannot be gathered or scattered: their length and both addresses "
            "have to be multiples of 16");
}

}  // namespace
}  // namespace taco::kernels::cuda
