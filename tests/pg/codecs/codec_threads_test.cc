// Codecs are shared by whatever engines and threads a process has.
#include <gtest/gtest.h>

#include <thread>

#include "pg/codecs/half_codec.h"
#include "pg/codecs/top_k_codec.h"
#include "support/coded_blocks.h"

namespace taco::pg {
namespace {

using namespace testing;

// The newest of several steps, as it arrives.
Floats steps(const Codec& codec, std::uint64_t seed) {
  Feedback feedback{.residual = Floats(20'000)};
  Floats arrived;
  for (std::uint64_t step = 0; step < 10; ++step) {
    Result<Block> block = encode(codec, normal_values(20'000, seed + step), &feedback, 0, 30'000);
    arrived.assign(20'000, kUntouched);
    if (!block.ok() || !decode(codec, *block, arrived, nullptr, 30'000).ok()) return Floats();
  }
  return arrived;
}

// More of them than it keeps scratch memory for.
void expect_threads_to_agree(const Codec& codec) {
  SCOPED_TRACE(codec.name());
  std::vector<Floats> results(12);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < results.size(); ++i) {
    threads.emplace_back([&, i] { results[i] = steps(codec, 100 * i); });
  }
  for (std::thread& thread : threads) thread.join();
  for (std::size_t i = 0; i < results.size(); ++i) EXPECT_EQ(results[i], steps(codec, 100 * i));
}

TEST(CodecThreads, many_threads_use_one_codec) {
  expect_threads_to_agree(*half_codec(HalfFormat::kF16));
  expect_threads_to_agree(**top_k_codec({.ratio = 0.05}));
  expect_threads_to_agree(**top_k_codec({.ratio = 0.05, .f16_values = true}));
}

TEST(CodecThreads, many_threads_ask_for_the_same_settings) {
  std::vector<std::shared_ptr<const Codec>> codecs(12);
  std::vector<std::thread> threads;
  for (auto& codec : codecs) {
    threads.emplace_back([&codec] { codec = *top_k_codec({.ratio = 0.123}); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& codec : codecs) EXPECT_EQ(codec, codecs[0]);
}

}  // namespace
}  // namespace taco::pg
