// Reductions, scaling and conversions for GPUs, thread by thread on the host, beside the host's
// own.
#include <gtest/gtest.h>

#include "kernels/cuda/reduce.h"
#include "kernels/samples.h"
#include "kernels/variant.h"
#include "support/fiber_grid.h"

namespace taco::kernels::cuda {
namespace {

using kernels::testing::Bytes;
using kernels::testing::Random;
using taco::testing::FiberGrid;

constexpr Dtype kDtypesHere[] = {Dtype::kF32, Dtype::kF64, Dtype::kF16, Dtype::kBF16,
                                 Dtype::kI8,  Dtype::kU8,  Dtype::kI32, Dtype::kI64};
constexpr ReduceOp kOpsHere[] = {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kProduct,
                                 ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kPremulSum};
// None, less than a pack, packs with a rest, and more than a block of threads.
constexpr std::size_t kCounts[] = {0, 1, 3, 15, 16, 17, 33, 1000, 9001};

// Three arrays, each begun so many elements after a multiple of 64 bytes.
struct Shifts {
  std::size_t out, a, b;
};
constexpr Shifts kShifts[] = {{0, 0, 0}, {1, 1, 1}, {0, 1, 2}, {3, 3, 0}};

TEST(CudaReduce, GivesTheHostsBitsForEveryPairAndAlignment) {
  Random random(1);
  std::uint64_t seed = 0;
  for (const Dtype dtype : kDtypesHere) {
    const std::size_t size = size_of(dtype);
    for (const ReduceOp op : kOpsHere) {
      for (const std::size_t count : kCounts) {
        const Shifts shift = kShifts[seed % 4];
        Bytes a(count * size, shift.a * size), b(count * size, shift.b * size);
        Bytes out(count * size, shift.out * size), expected(count * size, 0);
        fill(a, dtype, random);
        fill(b, dtype, random);
        kPortableVariant.reduce[static_cast<int>(op)][static_cast<int>(dtype)](
            expected.data(), a.data(), b.data(), count);
        const FiberGrid grid(++seed);
        ASSERT_TRUE(reduce_on(grid, op, dtype, out.data(), a.data(), b.data(), count).ok());
        EXPECT_TRUE(out == expected && out.guards_intact())
            << name_of(op) << " of " << count << " " << name_of(dtype) << ", seed " << seed;
      }
    }
  }
}

TEST(CudaReduce, WritesOverAnOperand) {
  Random random(2);
  Bytes a(4 * 5000, 4), b(4 * 5000, 4), expected(4 * 5000, 0);
  fill(a, Dtype::kF32, random);
  fill(b, Dtype::kF32, random);
  reduce_function(ReduceOp::kSum, Dtype::kF32)(expected.data(), a.data(), b.data(), 5000);
  ASSERT_TRUE(
      reduce_on(FiberGrid(1), ReduceOp::kSum, Dtype::kF32, b.data(), a.data(), b.data(), 5000)
          .ok());
  EXPECT_TRUE(b == expected);
}

TEST(CudaReduce, SaysWhatItCannotDo) {
  alignas(16) float numbers[8] = {};
  const FiberGrid grid(1);
  EXPECT_EQ(reduce_on(grid, ReduceOp::kSum, Dtype::kC64, numbers, numbers, numbers, 1).message(),
            "a reduction of complex64 is not supported on a GPU: float32, float64, float16, "
            "bfloat16, int8, uint8, int32 and int64 are");
  EXPECT_EQ(reduce_on(grid, ReduceOp::kBand, Dtype::kI32, numbers, numbers, numbers, 1).message(),
            "reduction BAND is not supported on a GPU: SUM, AVG, PRODUCT, MIN, MAX and PREMUL_SUM "
            "are");
  void* const odd = reinterpret_cast<char*>(numbers) + 2;
  EXPECT_EQ(reduce_on(grid, ReduceOp::kSum, Dtype::kF32, numbers, odd, numbers, 1).message(),
            "an array of 4-byte elements begins at an address that is no multiple of that, which "
            "a GPU cannot read: copy it to one that is");
  EXPECT_EQ(divide_on(grid, Dtype::kF32, numbers, numbers, 1, 0).message(),
            "a division by 0: a world has a size of 1 at least");
}

TEST(CudaScale, GivesTheHostsBits) {
  Random random(3);
  std::uint64_t seed = 0;
  constexpr std::int64_t kDivisors[] = {1, 2, 3, 7, 64, -1, -3, std::int64_t{1} << 33};
  constexpr double kFactors[] = {3, -2, 1.0 / 3, 0.5, 0.7, -0.3, 1e30, 0};
  constexpr std::size_t kCount = 4500;
  for (const Dtype dtype : kDtypesHere) {
    const std::size_t size = size_of(dtype);
    Bytes in(kCount * size, size), out(kCount * size, size), expected(kCount * size, 0);
    for (std::size_t i = 0; i < 8; ++i) {
      fill(in, dtype, random);
      kPortableVariant.divide[static_cast<int>(dtype)](expected.data(), in.data(), kCount,
                                                       kDivisors[i]);
      ASSERT_TRUE(
          divide_on(FiberGrid(++seed), dtype, out.data(), in.data(), kCount, kDivisors[i]).ok());
      EXPECT_TRUE(out == expected) << name_of(dtype) << " / " << kDivisors[i] << ", seed " << seed;
      kPortableVariant.scale[static_cast<int>(dtype)](expected.data(), in.data(), kCount,
                                                      kFactors[i]);
      ASSERT_TRUE(
          scale_on(FiberGrid(++seed), dtype, out.data(), in.data(), kCount, kFactors[i]).ok());
      EXPECT_TRUE(out == expected) << name_of(dtype) << " * " << kFactors[i] << ", seed " << seed;
    }
  }
}

std::uint16_t* halves(Bytes& bytes) { return reinterpret_cast<std::uint16_t*>(bytes.data()); }
float* floats(Bytes& bytes) { return reinterpret_cast<float*>(bytes.data()); }

template <class Format>
void check_conversions(Dtype dtype, void (*encode)(std::uint16_t*, const float*, std::size_t),
                       void (*decode)(float*, const std::uint16_t*, std::size_t),
                       void (*accumulate)(float*, const std::uint16_t*, std::size_t)) {
  Random random(4);
  std::uint64_t seed = 0;
  for (const std::size_t count : kCounts) {
    for (const std::size_t shift : {0, 1, 4}) {
      Bytes wide(4 * count, 4 * shift), narrow(2 * count, 2), packed(2 * count, 0);
      Bytes expected_wide(4 * count, 0), expected_narrow(2 * count, 0),
          aligned(2 * count, 2 * shift);
      fill(wide, Dtype::kF32, random);
      fill(packed, dtype, random);
      encode(halves(expected_narrow), floats(wide), count);
      ASSERT_TRUE(encode_on<Format>(FiberGrid(++seed), halves(narrow), floats(wide), count).ok());
      EXPECT_TRUE(narrow == expected_narrow && narrow.guards_intact()) << "seed " << seed;
      ASSERT_TRUE(encode_on<Format>(FiberGrid(++seed), halves(aligned), floats(wide), count).ok());
      EXPECT_TRUE(aligned == expected_narrow && aligned.guards_intact()) << "seed " << seed;

      expected_wide = wide;
      accumulate(floats(expected_wide), halves(packed), count);
      ASSERT_TRUE(
          accumulate_on<Format>(FiberGrid(++seed), floats(wide), halves(packed), count).ok());
      EXPECT_TRUE(wide == expected_wide && wide.guards_intact()) << "seed " << seed;

      decode(floats(expected_wide), halves(packed), count);
      ASSERT_TRUE(decode_on<Format>(FiberGrid(++seed), floats(wide), halves(packed), count).ok());
      EXPECT_TRUE(wide == expected_wide && wide.guards_intact()) << "seed " << seed;
    }
  }
}

TEST(CudaConvert, GivesTheHostsBits) {
  const Variant& host = kPortableVariant;
  check_conversions<Float16>(Dtype::kF16, host.f32_to_f16, host.f16_to_f32, host.accumulate_f16);
  check_conversions<Bfloat16>(Dtype::kBF16, host.f32_to_bf16, host.bf16_to_f32,
                              host.accumulate_bf16);
}

}  // namespace
}  // namespace taco::kernels::cuda
