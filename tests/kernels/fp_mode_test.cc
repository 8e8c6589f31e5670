// A caller's floating-point mode neither changes results nor is changed.
#include <gtest/gtest.h>

#include <cfenv>
#include <limits>

#include "kernels/samples.h"
#include "kernels/select.h"
#include "kernels/variant.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace taco::kernels {
namespace {

using testing::Bytes;
using testing::Random;

#if defined(__x86_64__)
constexpr std::uint64_t kFlushToZero = 0x8040;
std::uint64_t mode() { return _mm_getcsr(); }
void set_mode(std::uint64_t value) { _mm_setcsr(static_cast<unsigned>(value)); }
#elif defined(__aarch64__)
constexpr std::uint64_t kFlushToZero = std::uint64_t{1} << 24;
std::uint64_t mode() {
  std::uint64_t value;
  asm volatile("mrs %0, fpcr" : "=r"(value));
  return value;
}
void set_mode(std::uint64_t value) { asm volatile("msr fpcr, %0" : : "r"(value)); }
#endif

class Mode {
 public:
  explicit Mode(std::uint64_t extra) : before_(mode()) { set_mode(before_ | extra); }
  ~Mode() { set_mode(before_); }
  Mode(const Mode&) = delete;
  Mode& operator=(const Mode&) = delete;

 private:
  std::uint64_t before_;
};

#if defined(__x86_64__)
constexpr std::uint64_t kRoundUp = 0x4000;
#else
constexpr std::uint64_t kRoundUp = std::uint64_t{1} << 22;
#endif

// Denormals of every floating type, sums of which flushing would lose.
void fill_small(Bytes& bytes, Random& random) {
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes.data()[i] = i % 2 == 0 ? static_cast<unsigned char>(random()) : 0;
  }
}

TEST(FpMode, TheTestsModeReallyFlushes) {
  volatile float tiny = 1e-45f;
  const Mode flush(kFlushToZero);
  volatile float sum = tiny + tiny;
  EXPECT_EQ(sum == 0, true);
}

TEST(FpMode, FlushToZeroAndRoundingOfTheCallerDoNotReachTheResult) {
  for (const Variant* variant : host_variants()) {
    for (const std::uint64_t extra : {kFlushToZero, kRoundUp}) {
      for (int op = 0; op < kReduceOps; ++op) {
        for (int d = 0; d < kDtypes; ++d) {
          if (variant->reduce[op][d] == nullptr) continue;
          Random random(31);
          constexpr std::size_t kBytes = 4096;
          Bytes a(kBytes, 1);
          Bytes b(kBytes, 2);
          if (extra == kFlushToZero) {
            fill_small(a, random);
            fill_small(b, random);
          } else {
            testing::fill(a, static_cast<Dtype>(d), random);
            testing::fill(b, static_cast<Dtype>(d), random);
          }
          const std::size_t count = kBytes / size_of(static_cast<Dtype>(d));
          Bytes expected(kBytes, 0);
          Bytes out(kBytes, 0);
          variant->reduce[op][d](expected.data(), a.data(), b.data(), count);
          std::uint64_t inside = 0;
          std::uint64_t after = 0;
          {
            const Mode changed(extra);
            inside = mode();
            variant->reduce[op][d](out.data(), a.data(), b.data(), count);
            if (variant->scale[d] != nullptr) {
              variant->scale[d](b.data(), b.data(), count, 0.3);
              variant->divide[d](b.data(), b.data(), count, 3);
            }
            after = mode();
          }
          ASSERT_EQ(out, expected) << variant->name << ' ' << name_of(static_cast<ReduceOp>(op))
                                   << " of " << name_of(static_cast<Dtype>(d));
          ASSERT_EQ(inside, after) << "the caller's mode was not restored";
        }
      }
    }
  }
}

TEST(FpMode, ConversionsAndAccumulationIgnoreTheCallersMode) {
  Random random(32);
  constexpr std::size_t kCount = 2048;
  for (const Variant* variant : host_variants()) {
    Bytes floats(4 * kCount, 0);
    Bytes halves(2 * kCount, 0);
    testing::fill(floats, Dtype::kF32, random);
    fill_small(halves, random);
    const auto* from = reinterpret_cast<const float*>(floats.data());
    const auto* packed = reinterpret_cast<const std::uint16_t*>(halves.data());
    const auto run = [&](Bytes& narrow, Bytes& wide, Bytes& sum) {
      variant->f32_to_f16(reinterpret_cast<std::uint16_t*>(narrow.data()), from, kCount);
      variant->f16_to_f32(reinterpret_cast<float*>(wide.data()), packed, kCount);
      variant->accumulate_bf16(reinterpret_cast<float*>(sum.data()), packed, kCount);
    };
    Bytes narrow(2 * kCount, 0), wide(4 * kCount, 0), sum(4 * kCount, 0);
    Bytes narrow_again = narrow, wide_again = wide, sum_again = sum;
    run(narrow, wide, sum);
    {
      const Mode changed(kFlushToZero | kRoundUp);
      run(narrow_again, wide_again, sum_again);
    }
    ASSERT_EQ(narrow, narrow_again) << variant->name;
    ASSERT_EQ(wide, wide_again) << variant->name;
    ASSERT_EQ(sum, sum_again) << variant->name;
  }
}

TEST(FpMode, SelectionAndScaledConversionsIgnoreTheCallersMode) {
  Random random(33);
  constexpr std::size_t kCount = 2048, kTaken = 100;
  for (const Variant* variant : host_variants()) {
    Bytes gradient(4 * kCount, 0), halves(2 * kCount, 0);
    fill_small(gradient, random);
    fill_small(halves, random);
    const auto* from = reinterpret_cast<const float*>(gradient.data());
    const auto* packed = reinterpret_cast<const std::uint16_t*>(halves.data());
    for (std::size_t i = 0; i < kCount; ++i) gradient.data()[4 * i + 3] %= 4;  // below 2^-120
    const auto run = [&] {
      std::vector<float> residual(kCount, 1e-41f), momentum(kCount, 3e-41f), values(kTaken);
      std::vector<float> wide(kCount), sum(kCount, 1e-41f);
      std::vector<std::uint32_t> indices(kTaken);
      std::vector<std::uint16_t> narrow(kCount);
      SelectScratch scratch;
      EXPECT_TRUE(select_with(*variant, residual.data(), momentum.data(), from, 0.3f, kCount,
                              kTaken, values.data(), indices.data(), scratch));
      EXPECT_TRUE(select_with(*variant, residual.data(), nullptr, from, 0, kCount, kTaken,
                              values.data(), indices.data(), scratch));
      scatter_add(residual.data(), values.data(), indices.data(), kTaken);
      variant->f32_to_f16_scaled(narrow.data(), from, kCount, 0x1p100f, 0);
      variant->f16_to_f32_scaled(wide.data(), packed, kCount, 0x1p-120f);
      variant->accumulate_f16_scaled(sum.data(), sum.data(), packed, kCount, 0x1p-120f);
      for (const auto* part : {&momentum, &values, &wide, &sum}) {
        residual.insert(residual.end(), part->begin(), part->end());
      }
      residual.insert(residual.end(), narrow.begin(), narrow.end());
      return residual;
    };
    const std::vector<float> expected = run();
    std::vector<float> out;
    std::uint64_t inside = 0, after = 0;
    {
      const Mode changed(kFlushToZero | kRoundUp);
      inside = mode();
      out = run();
      after = mode();
    }
    ASSERT_EQ(std::memcmp(out.data(), expected.data(), 4 * expected.size()), 0) << variant->name;
    ASSERT_EQ(inside, after) << "the caller's mode was not restored";
  }
}

}  // namespace
}  // namespace taco::kernels
