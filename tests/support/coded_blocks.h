// Whole blocks of float32 through a codec, in parts of any size. Blocks and destinations are
// exactly as large as they are said to be, so that a sanitizer sees each byte beyond.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "pg/codec.h"

namespace taco::pg::testing {

using Floats = std::vector<float>;
using Block = std::vector<std::byte>;

inline constexpr std::size_t kAtOnce = SIZE_MAX;
// The value that a destination holds before.
inline constexpr float kUntouched = -77.25f;

inline const std::byte* bytes_of(const Floats& values) {
  return reinterpret_cast<const std::byte*>(values.data());
}

inline Coding coding_of(const Floats& source, Block& destination) {
  Coding coding;
  coding.source = bytes_of(source);
  coding.source_bytes = source.size() * sizeof(float);
  coding.destination = destination.data();
  coding.destination_bytes = destination.size();
  coding.dtype = kernels::Dtype::kF32;
  return coding;
}

inline Coding coding_of(const Block& source, Floats& destination) {
  Coding coding;
  coding.source = source.data();
  coding.source_bytes = source.size();
  coding.destination = reinterpret_cast<std::byte*>(destination.data());
  coding.destination_bytes = destination.size() * sizeof(float);
  coding.dtype = kernels::Dtype::kF32;
  return coding;
}

// The budgets of its parts are drawn up to `budget`.
template <class Workload>
Status run(Coding& coding, std::size_t budget, const Workload& work) {
  std::mt19937_64 random(1);
  for (int part = 0; !coding.done; ++part) {
    if (part > 10'000'000) return Status(Code::kInternal, "it never ends");
    const Result<std::size_t> worked =
        work(coding, budget == kAtOnce ? budget : 1 + random() % budget);
    if (!worked.ok()) return worked.status();
  }
  return Status();
}

inline Result<Block> encode(const Codec& codec, const Floats& values, Feedback* feedback = nullptr,
                            std::size_t from = 0, std::size_t budget = kAtOnce) {
  Block block(codec.most(values.size() * sizeof(float)));
  Coding coding = coding_of(values, block);
  coding.feedback = feedback;
  coding.feedback_from = from;
  TACO_RETURN_IF_ERROR(
      run(coding, budget, [&](Coding& c, std::size_t b) { return codec.encode(c, b); }));
  EXPECT_EQ(coding.read, coding.source_bytes);
  EXPECT_LE(coding.written, block.size());
  return Block(block.begin(), block.begin() + static_cast<std::ptrdiff_t>(coding.written));
}

// Into `destination`, which says how many elements are expected; with an operand, by `op`. Each is
// divided first.
inline Status decode(const Codec& codec, const Block& block, Floats& destination,
                     const Floats* operand = nullptr, std::size_t budget = kAtOnce,
                     kernels::ReduceOp op = kernels::ReduceOp::kSum, std::uint32_t divisor = 1) {
  Coding coding = coding_of(block, destination);
  coding.divisor = divisor;
  if (operand != nullptr) {
    coding.operand = bytes_of(*operand);
    coding.reduce = kernels::reduce_function(op, kernels::Dtype::kF32);
  }
  return run(coding, budget, [&](Coding& c, std::size_t b) { return codec.decode(c, b); });
}

// The values that arrive when `values` are sent.
inline Floats through(const Codec& codec, const Floats& values, Feedback* feedback = nullptr) {
  Result<Block> block = encode(codec, values, feedback);
  EXPECT_TRUE(block.ok()) << block.status().message();
  Floats arrived(values.size(), kUntouched);
  if (!block.ok()) return arrived;
  const Status status = decode(codec, *block, arrived);
  EXPECT_TRUE(status.ok()) << status.message();
  return arrived;
}

// Bit by bit: NaN equals itself, and 0 is not -0.
inline std::vector<std::uint32_t> bits_of(const Floats& values) {
  std::vector<std::uint32_t> bits(values.size());
  std::memcpy(bits.data(), values.data(), values.size() * sizeof(float));
  return bits;
}

inline Floats normal_values(std::size_t count, std::uint64_t seed, float scale = 1) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0, scale);
  Floats values(count);
  for (float& value : values) value = normal(random);
  return values;
}

// Changes a block at random: bytes, its length, or what stands in it twice.
inline void damage(Block& block, std::mt19937_64& random) {
  const auto place = [&] { return random() % std::max<std::size_t>(block.size(), 1); };
  for (std::uint64_t changes = 1 + random() % 4; changes > 0; --changes) {
    switch (block.empty() ? 2 : random() % 5) {
      case 0:
        block[place()] ^= static_cast<std::byte>(1u << random() % 8);
        break;
      case 1:
        block[place()] = static_cast<std::byte>(random());
        break;
      case 2:
        block.insert(block.end(), 1 + random() % 9, static_cast<std::byte>(random()));
        break;
      case 3:
        block.resize(place());
        break;
      default: {  // a run of it over another
        const std::size_t from = place(), to = place();
        const std::size_t length = random() % (block.size() - std::max(from, to) + 1);
        std::memmove(block.data() + to, block.data() + from, length);
      }
    }
  }
}

}  // namespace taco::pg::testing
