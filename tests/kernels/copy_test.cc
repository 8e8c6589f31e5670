#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
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

INSTANTIATE_TEST_SUITE_P(Ahead, Copies, ::testing::Values(copy, copy_cold, copy_in_order));

// A destination whose second page cannot be written: the fault interrupts a copy there, which is
// then seen as it stands, and goes on.
struct Interrupted {
  static constexpr std::size_t kPage = 4096, kPages = 16;
  std::byte* const pages = static_cast<std::byte*>(
      mmap(nullptr, kPages* kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  std::byte* const fault = pages + kPage;
  const std::byte* to = nullptr;
  const std::byte* from = nullptr;
  bool faulted = false, in_order = false;

  ~Interrupted() { munmap(pages, kPages * kPage); }
  void watch(const std::byte* out, const std::byte* in) {
    to = out;
    from = in;
    faulted = in_order = false;
    std::memset(pages, 0, kPages * kPage);
    mprotect(fault, kPage, PROT_NONE);
  }
  void look() {
    faulted = true;
    mprotect(fault, kPage, PROT_READ | PROT_WRITE);
    in_order = std::memcmp(to, from, static_cast<std::size_t>(fault - to)) == 0;
    for (const std::byte* at = fault; at < pages + kPages * kPage; ++at) {
      in_order &= *at == std::byte{0};
    }
  }
};
Interrupted* interrupted = nullptr;

TEST(CopyInOrder, WritesNothingBeforeWhatLiesBelow) {
  Interrupted copy_of;
  interrupted = &copy_of;
  struct sigaction look {
  }, before{};
  look.sa_handler = [](int) { interrupted->look(); };
  ASSERT_EQ(sigaction(SIGSEGV, &look, &before), 0);
  for (const std::size_t bytes : {128, 1440, 4000, 20'000}) {
    for (const std::size_t below : {16, 64, 112, 1008, 4096}) {
      if (below >= bytes) continue;
      std::vector<std::byte> source(bytes);
      for (std::size_t i = 0; i < bytes; ++i) source[i] = std::byte(i % 251 + 1);
      std::byte* const to = copy_of.fault - below;
      copy_of.watch(to, source.data());
      copy_in_order(to, source.data(), bytes);
      EXPECT_TRUE(copy_of.faulted);
      EXPECT_TRUE(copy_of.in_order) << bytes << " bytes, " << below << " below the page";
      EXPECT_EQ(std::memcmp(to, source.data(), bytes), 0);
    }
  }
  sigaction(SIGSEGV, &before, nullptr);
}

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
