// Blocks that no codec of this kind has made: each is refused with what is wrong in it, before a
// byte of the destination has been written.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "kernels/scaled_half.h"
#include "kernels/select.h"
#include "pg/codecs/top_k_block.h"
#include "pg/codecs/top_k_codec.h"
#include "support/coded_blocks.h"

namespace taco::pg {
namespace {

using namespace testing;

constexpr std::size_t kElements = 1000, kValues = 10;

const Codec& codec_of(bool f16) {
  static const auto narrow = *top_k_codec({.ratio = 0.01, .f16_values = true});
  static const auto wide = *top_k_codec({.ratio = 0.01});
  return f16 ? *narrow : *wide;
}

// A block as somebody might write it who means harm.
struct Forgery {
  TopKHeader header{
      .kind = TopKKind::kF32, .elements = kElements, .values = kValues, .index_bytes = kValues};
  std::size_t value_bytes = kValues * sizeof(float);
  std::vector<int> deltas = std::vector<int>(kValues, 50);  // to 50, 101, ...
  int more = 0;                                             // bytes beyond its end

  Block block() const {
    Block bytes(sizeof header + value_bytes);
    std::memcpy(bytes.data(), &header, sizeof header);
    for (const int delta : deltas) bytes.push_back(static_cast<std::byte>(delta));
    if (more < 0) bytes.resize(bytes.size() - static_cast<std::size_t>(-more));
    if (more > 0) bytes.resize(bytes.size() + static_cast<std::size_t>(more));
    return bytes;
  }
  void set_deltas(std::vector<int> bytes) {
    deltas = std::move(bytes);
    header.index_bytes = static_cast<std::uint32_t>(deltas.size());
  }
};

// Decoded in every way there is.
Status verdict(const Codec& codec, const Block& block, std::size_t elements = kElements) {
  const Floats untouched(elements, kUntouched);
  const Floats operand(elements, 1.0f);
  Floats destination = untouched;
  const Status status = decode(codec, block, destination);
  EXPECT_TRUE(status.ok() || destination == untouched);
  for (const std::size_t budget : {std::size_t{64}, kAtOnce}) {
    destination = untouched;
    EXPECT_EQ(decode(codec, block, destination, &operand, budget).message(), status.message());
    EXPECT_TRUE(status.ok() || destination == untouched);
  }
  destination = untouched;
  EXPECT_EQ(decode(codec, block, destination, &destination).message(), status.message());
  EXPECT_TRUE(status.ok() || destination == untouched);
  return status;
}

void expect_refused(const Forgery& forgery, const std::string& text, bool f16 = false) {
  const Status status = verdict(codec_of(f16), forgery.block());
  EXPECT_EQ(status.code(), Code::kMismatch) << text;
  EXPECT_NE(status.message().find(text), std::string::npos) << status.message();
}

TEST(TopKDamage, the_forger_can_write_a_good_block) {
  EXPECT_TRUE(verdict(codec_of(false), Forgery().block()).ok());
  Forgery halves;
  halves.header.kind = TopKKind::kF16;
  halves.value_bytes = kValues * 2;
  EXPECT_TRUE(verdict(codec_of(true), halves.block()).ok());
  EXPECT_TRUE(verdict(codec_of(true), Forgery().block()).ok());
  Forgery dense;
  dense.header = {.elements = kElements, .values = kElements};
  dense.value_bytes = kElements * sizeof(float);
  dense.deltas.clear();
  EXPECT_TRUE(verdict(codec_of(false), dense.block()).ok());
}

TEST(TopKDamage, a_block_that_is_cut_short_anywhere_is_refused) {
  const Block whole = Forgery().block();
  for (std::size_t length = 0; length < whole.size(); ++length) {
    const Block part(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(length));
    const Status status = verdict(codec_of(false), part);
    EXPECT_EQ(status.code(), Code::kMismatch);
    EXPECT_NE(status.message().find("has " + std::to_string(length) + " bytes, and its header"),
              std::string::npos)
        << status.message();
  }
}

TEST(TopKDamage, a_block_that_goes_on_is_refused) {
  for (const int more : {1, 4, 100}) {
    expect_refused({.more = more},
                   "has " + std::to_string(70 + more) + " bytes, and its header says 70");
  }
}

TEST(TopKDamage, a_header_that_does_not_fit_is_refused_with_both_figures) {
  const auto with = [](const std::function<void(TopKHeader&)>& change) {
    Forgery forgery;
    change(forgery.header);
    return forgery;
  };
  expect_refused(with([](TopKHeader& h) { h.version = 2; }), "is of version 2, not 1");
  expect_refused(with([](TopKHeader& h) { h.kind = TopKKind(3); }), "the unknown kind 3");
  expect_refused(with([](TopKHeader& h) { h.zero = 256; }), "has 256 where it must have 0");
  expect_refused(with([](TopKHeader& h) { h.elements = 999; }), "is of 999 elements, not 1000");
  expect_refused(with([](TopKHeader& h) { h.elements = UINT32_MAX; }), "not 1000");
  for (const std::uint32_t values : {0u, 9u, 11u, 1001u, UINT32_MAX}) {
    expect_refused(with([&](TopKHeader& h) { h.values = values; }),
                   "sends " + std::to_string(values) + ", not 10");
  }
  expect_refused(with([](TopKHeader& h) { h.exponent = 1; }), "the exponent 1, outside 0 to 0");
  for (const std::uint32_t bytes : {0u, 9u, 11u, UINT32_MAX}) {
    expect_refused(with([&](TopKHeader& h) { h.index_bytes = bytes; }), "its header says");
  }
  // Dense, and yet with all that a sparse block has.
  expect_refused(with([](TopKHeader& h) { h.kind = TopKKind::kDense; }), "sends 10, not 1000");
  expect_refused(with([](TopKHeader& h) { h.kind = TopKKind::kDense, h.values = kElements; }),
                 "has 10 bytes of indices");
}

TEST(TopKDamage, halves_are_refused_where_there_are_none_and_with_a_wild_exponent) {
  Forgery halves;
  halves.header.kind = TopKKind::kF16;
  halves.value_bytes = kValues * 2;
  expect_refused(halves, "has float16 values, not float32", false);
  for (const std::int32_t exponent :
       {kernels::kMinF16Exponent - 1, kernels::kMaxF16Exponent + 1, INT32_MIN, INT32_MAX}) {
    halves.header.exponent = exponent;
    expect_refused(halves, "has the exponent " + std::to_string(exponent), true);
  }
}

TEST(TopKDamage, indices_past_the_end_repeated_or_missing_are_refused) {
  const std::string text = "not 10 ascending ones below 1000";
  Forgery forgery;
  for (const std::vector<int>& deltas : std::vector<std::vector<int>>{
           {100, 99, 99, 99, 99, 99, 99, 99, 99, 100},            // the last at 1000
           {0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255, 254},  // far beyond
           {0, 0, 0, 0, 0, 0, 0, 0, 0},                           // nine
           {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0},                     // eleven
           {0, 0, 0, 0, 0, 0, 0, 0, 0, 255},                      // skips, and stops
           {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255},                   // skips after the last
           {255, 255, 255, 255, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0},    // the first at 1020
           {}}) {
    forgery.set_deltas(deltas);
    expect_refused(forgery, text);
  }
  forgery.set_deltas(std::vector<int>(4000, 255));
  expect_refused(forgery, text);
  // Gaps cannot say the same index twice: the least is the next one.
  forgery.set_deltas({249, 0, 0, 0, 0, 0, 0, 0, 0, 0});
  EXPECT_TRUE(verdict(codec_of(false), forgery.block()).ok());
  forgery.set_deltas({255, 255, 255, 225, 0, 0, 0, 0, 0, 0, 0, 0, 0});  // 990 to 999
  EXPECT_TRUE(verdict(codec_of(false), forgery.block()).ok());
  forgery.set_deltas({255, 255, 255, 226, 0, 0, 0, 0, 0, 0, 0, 0, 0});
  expect_refused(forgery, text);
}

TEST(TopKDamage, a_block_where_nothing_is_expected_is_refused) {
  EXPECT_EQ(verdict(codec_of(false), Block(20), 0).code(), Code::kMismatch);
  EXPECT_TRUE(verdict(codec_of(false), Block(), 0).ok());
}

TEST(TopKDamage, a_block_of_another_length_or_codec_is_refused) {
  Feedback feedback{.residual = Floats(500)};
  Result<Block> block = encode(codec_of(false), normal_values(500, 1), &feedback);
  ASSERT_TRUE(block.ok());
  EXPECT_EQ(verdict(codec_of(false), *block).code(), Code::kMismatch);
  const auto other = *top_k_codec({.ratio = 0.02});
  EXPECT_EQ(verdict(*other, *block, 500).code(), Code::kMismatch);
}

TEST(TopKDamage, damage_at_random_is_refused_or_decoded) {
  int refused = 0, decoded = 0;
  for (std::uint64_t seed = 1; seed <= 4000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const std::size_t count = 1 + random() % 2000;
    const bool f16 = random() % 2 == 0;
    Floats values = normal_values(count, seed);
    if (random() % 8 == 0) values[0] = HUGE_VALF;
    Feedback feedback{.residual = Floats(count)};
    Result<Block> block = encode(codec_of(f16), values, &feedback);
    ASSERT_TRUE(block.ok());
    damage(*block, random);
    const Status status = verdict(codec_of(f16), *block, count);
    ++(status.ok() ? decoded : refused);
    EXPECT_TRUE(status.ok() || status.code() == Code::kMismatch);
  }
  EXPECT_GT(refused, 1000);
  EXPECT_GT(decoded, 100);
}

}  // namespace
}  // namespace taco::pg
