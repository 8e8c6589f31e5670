// Codecs work on the data path: once they have seen a block, they allocate nothing for the next.
// Every allocation of this program is counted.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "pg/codecs/feedback.h"
#include "pg/codecs/half_codec.h"
#include "pg/codecs/top_k_codec.h"
#include "support/coded_blocks.h"

namespace {
std::atomic<std::uint64_t> allocations{0};
}  // namespace

void* operator new(std::size_t bytes) {
  void* block = std::malloc(bytes);
  if (block == nullptr) throw std::bad_alloc();
  ++allocations;
  return block;
}
// Inlined, they look to a compiler as if they did not belong together.
[[gnu::noinline]] void operator delete(void* block) noexcept { std::free(block); }
[[gnu::noinline]] void operator delete(void* block, std::size_t) noexcept {
  operator delete(block);
}

namespace taco::pg {
namespace {

using namespace testing;

// A step: the block is encoded, decoded, and decoded once more on top.
bool step(const Codec& codec, const Floats& gradient, Block& block, Floats& result,
          Feedback* feedback) {
  if (feedback != nullptr) forget_sent_but(*feedback, {});
  Coding encoding = coding_of(gradient, block);
  encoding.feedback = feedback;
  const auto encodes = [&](Coding& c, std::size_t b) { return codec.encode(c, b); };
  const auto decodes = [&](Coding& c, std::size_t b) { return codec.decode(c, b); };
  if (!run(encoding, 60'000, encodes).ok()) return false;
  for (const bool adds : {false, true}) {
    Coding decoding = coding_of(block, result);
    decoding.source_bytes = encoding.written;
    if (adds) {
      decoding.operand = decoding.destination;
      decoding.reduce = kernels::reduce_function(kernels::ReduceOp::kSum, kernels::Dtype::kF32);
    }
    if (!run(decoding, 60'000, decodes).ok()) return false;
  }
  return true;
}

void expect_no_allocation(const Codec& codec, Feedback* feedback) {
  SCOPED_TRACE(codec.name());
  Floats gradients[] = {normal_values(100'000, 1), normal_values(100'000, 2),
                        Floats(100'000, 1.0f)};
  std::fill_n(gradients[2].begin() + 30'000, 40'000, 0.0f);  // a parameter without gradient
  Block block(codec.most(400'000));
  Floats result(100'000);
  for (const Floats& gradient : gradients) {
    ASSERT_TRUE(step(codec, gradient, block, result, feedback));
  }
  const std::uint64_t before = allocations;
  bool good = true;
  for (int i = 0; i < 10; ++i) {
    for (const Floats& gradient : gradients) {
      good = good && step(codec, gradient, block, result, feedback);
    }
  }
  EXPECT_EQ(allocations, before);
  EXPECT_TRUE(good);
}

TEST(CodecMemory, sixteen_bits_allocate_nothing) {
  expect_no_allocation(*half_codec(HalfFormat::kF16), nullptr);
  expect_no_allocation(*half_codec(HalfFormat::kBF16), nullptr);
}

TEST(CodecMemory, top_k_allocates_nothing_in_a_steady_state) {
  for (const double ratio : {0.01, 0.2}) {
    Feedback feedback{.residual = Floats(100'000)};
    expect_no_allocation(**top_k_codec({.ratio = ratio}), &feedback);
    feedback.undoable = true;
    feedback.begins = {0, 30'000, 70'000};
    feedback.momentum = Floats(100'000);
    feedback.before = {
        .first = {1, 0, 1}, .residual = Floats(100'000), .momentum = Floats(100'000)};
    expect_no_allocation(**top_k_codec({.ratio = ratio, .f16_values = true, .momentum = 0.9}),
                         &feedback);
  }
}

}  // namespace
}  // namespace taco::pg
