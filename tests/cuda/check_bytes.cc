#include <algorithm>
#include <numeric>
#include <random>

#include "cuda/device_check.h"
#include "kernels/cuda/ascending.h"
#include "kernels/cuda/checksum.h"
#include "kernels/cuda/taco_cuda.h"

namespace taco::kernels::cuda::check {
namespace {

using Random = std::mt19937_64;
using Numbers = std::vector<std::uint32_t>;
using testing::ascending;

// Three blocks, coded by the host and by the GPU, and found again; then with a byte changed.
void compare_deltas(Cases& cases, Random& random, std::uint32_t n, std::uint32_t k) {
  constexpr std::uint32_t kBlocks = 3;
  const std::size_t stride = max_delta_bytes(k, n);
  std::vector<std::uint8_t> expected(kBlocks * stride);
  Numbers indices, lengths;
  for (std::uint32_t b = 0; b < kBlocks; ++b) {
    const Numbers own = ascending(random, n, k);
    lengths.push_back(
        static_cast<std::uint32_t>(encode_deltas(expected.data() + b * stride, own.data(), k)));
    indices.insert(indices.end(), own.begin(), own.end());
  }
  DeviceArray<std::uint32_t> on_gpu(indices), lengths_on_gpu(lengths), valid(kBlocks);
  DeviceArray<std::uint8_t> bytes(std::vector<std::uint8_t>(expected.size()));
  const DeltaArguments of{.blocks = kBlocks,
                          .block = n,
                          .last_block = n,
                          .k = k,
                          .last_k = k,
                          .stride = stride,
                          .bytes = bytes.data(),
                          .lengths = lengths_on_gpu.data(),
                          .indices = on_gpu.data(),
                          .valid = valid.data()};
  must(taco_cuda_encode_deltas(nullptr, &of), "encode_deltas");
  std::vector<std::uint8_t> got = bytes.get();
  bool same = lengths_on_gpu.get() == lengths;
  for (std::uint32_t b = 0; b < kBlocks; ++b) {
    same &= std::equal(got.begin() + b * stride, got.begin() + b * stride + lengths[b],
                       expected.begin() + b * stride);
  }
  const std::string which = std::to_string(k) + " of " + std::to_string(n);
  cases.expect(same && bytes.guards_intact(), "encode " + which);
  on_gpu.set(Numbers(indices.size()));
  must(taco_cuda_decode_deltas(nullptr, &of), "decode_deltas");
  cases.expect(on_gpu.get() == indices && valid.get() == Numbers(kBlocks, 1), "decode " + which);
  for (int trial = 0; trial < 20; ++trial) {
    std::vector<std::uint8_t> damaged = expected;
    damaged[random() % lengths[0]] ^= static_cast<std::uint8_t>(1 << random() % 8);
    Numbers decoded(k);
    const bool fine = decode_deltas(decoded.data(), k, damaged.data(), lengths[0], n);
    bytes.set(damaged);
    must(taco_cuda_decode_deltas(nullptr, &of), "decode_deltas");
    const Numbers result = on_gpu.get();
    cases.expect((valid.get()[0] != 0) == fine &&
                     (!fine || std::equal(decoded.begin(), decoded.end(), result.begin())),
                 "decode what is damaged, " + which);
  }
}

bool check_deltas(bool small) {
  Cases cases("codec of indices");
  Random random(5);
  for (const std::uint32_t k : {1, 7, 255, 256, 1000}) {
    for (const std::uint32_t n : {1000, 70000}) compare_deltas(cases, random, n, k);
  }
  if (!small) compare_deltas(cases, random, 1 << 20, 10486);
  return cases.end();
}

bool check_checksum(bool small) {
  Cases cases("crc32c");
  Random random(6);
  std::vector<std::size_t> lengths = {0, 1, 3, 15, 16, 17, 31, 4095, 4096, 4097, 65537};
  if (!small) lengths.insert(lengths.end(), {1000003, (std::size_t{64} << 20) + 13});
  std::vector<std::uint8_t> bytes(lengths.back());
  for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random() >> 20);
  DeviceArray<std::uint32_t> result(1), workspace(kMaxChecksumParts);
  for (const std::size_t length : lengths) {
    for (const std::size_t shift : {0, 1, 7, 15}) {
      const std::vector<std::uint8_t> part(bytes.begin(), bytes.begin() + length);
      DeviceArray<std::uint8_t> data(part, shift);
      must(taco_cuda_crc32c(nullptr, 77, data.data(), length, result.data(), workspace.data()),
           "crc32c");
      cases.expect(result.get()[0] == crc32c(77, part.data(), length),
                   std::to_string(length) + " bytes, shift " + std::to_string(shift));
    }
  }
  return cases.end();
}

bool check_pages(bool small) {
  Cases cases("pages");
  Random random(7);
  for (const std::size_t page : {16, 20000, 65536}) {
    const std::uint32_t apart_count = small ? 9 : 200;
    std::vector<std::uint8_t> apart(apart_count * page);
    for (std::uint8_t& byte : apart) byte = static_cast<std::uint8_t>(random() >> 20);
    Numbers pages(apart_count);
    std::iota(pages.begin(), pages.end(), 0u);
    std::shuffle(pages.begin(), pages.end(), random);
    pages.resize(apart_count / 2);
    pages.push_back(apart_count);  // no page's number
    std::vector<std::uint8_t> expected(pages.size() * page, 3), back(apart.size(), 3);
    for (std::size_t i = 0; i + 1 < pages.size(); ++i) {
      const auto from = apart.begin() + pages[i] * page;
      std::copy(from, from + page, expected.begin() + i * page);
      std::copy(from, from + page, back.begin() + pages[i] * page);
    }
    DeviceArray<std::uint8_t> source(apart);
    DeviceArray<std::uint8_t> together(std::vector<std::uint8_t>(expected.size(), 3));
    DeviceArray<std::uint8_t> target(std::vector<std::uint8_t>(apart.size(), 3));
    DeviceArray<std::uint32_t> numbers(pages), refused(Numbers{0});
    must(taco_cuda_gather_pages(nullptr, together.data(), source.data(), numbers.data(),
                                pages.size(), page, apart_count, refused.data()),
         "gather_pages");
    cases.expect(together.get() == expected && together.guards_intact(), "gather");
    must(taco_cuda_scatter_pages(nullptr, target.data(), together.data(), numbers.data(),
                                 pages.size(), page, apart_count, refused.data()),
         "scatter_pages");
    cases.expect(target.get() == back && target.guards_intact(), "scatter");
    cases.expect(refused.get()[0] == 2, "refusals");
  }
  return cases.end();
}

}  // namespace

bool check_bytes(bool small) {
  bool good = check_deltas(small);
  good &= check_checksum(small);
  good &= check_pages(small);
  return good;
}

}  // namespace taco::kernels::cuda::check
