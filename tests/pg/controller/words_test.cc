// Words are read as they were written, and anything else is refused.
#include "pg/controller/words.h"

#include <gtest/gtest.h>

#include <random>

#include "support/negotiating_ranks.h"

namespace taco::pg::controller {
namespace {

constexpr int kWorld = 3;

std::vector<Request> some_requests() {
  Request scaled = make_request(Kind::kAllReduce, "layer.weight", {{1 << 20, 3}, {}});
  scaled.dtype = kernels::Dtype::kBF16;
  scaled.op = kernels::ReduceOp::kAvg;
  scaled.prescale = 0.125;
  Request split = make_request(Kind::kAllToAll, "", {{300, 0}});
  split.splits = {0, 100, 200};
  Request set = make_request(Kind::kAddSet, std::string("a\0b", 3));
  set.ranks = {0, 2};
  Request gone = make_request(Kind::kRemoveSet, "gone");
  gone.root = -70'000;
  Request root = make_request(Kind::kBroadcast, std::string(200, 'r'), {{7}});
  root.root = 2;
  return {scaled, split, set, gone, root, make_request(Kind::kJoin, "join")};
}

std::string written(const std::vector<Request>& requests) {
  WordsWriter writer(1 << 20, ~std::uint64_t{0});
  for (const Request& request : requests) EXPECT_TRUE(writer.add(request));
  writer.add_waiting(0);
  writer.add_waiting(70'000);
  return writer.take();
}

TEST(Words, AreReadAsTheyWereWritten) {
  Result<Words> read = read_words(written(some_requests()), kWorld);
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(read->round, std::uint64_t{1} << 20);
  EXPECT_EQ(read->digest, ~std::uint64_t{0});
  EXPECT_EQ(read->requests, some_requests());
  EXPECT_EQ(read->waiting_slots, (std::vector<std::uint32_t>{0, 70'000}));
}

TEST(Words, AreShort) {
  WordsWriter writer(9, 0);
  const std::size_t head = WordsWriter(writer).take().size();
  writer.add(make_request(Kind::kAllReduce, std::string(40, 'n'), {{1024, 1024}}));
  EXPECT_LE(writer.take().size() - head, 56u) << "of which the name is 40";
}

TEST(Words, HaveRoomForOneRequestOfAnyLength) {
  Request large = make_request(Kind::kAllReduce, "large");
  large.shapes.assign(kMaxTensors, Shape(40, 1));
  WordsWriter writer(1, 1);
  EXPECT_TRUE(writer.add(large));
  EXPECT_FALSE(writer.add(make_request(Kind::kJoin, "join")));
  Result<Words> read = read_words(writer.take(), kWorld);
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(read->requests, std::vector<Request>{large});
}

// A peer says how many bytes it has before it sends them.
TEST(Words, HaveNeverMoreBytesThanIsSaid) {
  Request largest = make_request(Kind::kAllToAll, std::string(kMaxNameBytes, 'n'));
  largest.shapes.assign(kMaxTensors, Shape(kMaxDimensions, INT64_MAX));
  largest.splits.assign(kWorld, INT64_MAX);
  largest.ranks.assign(kWorld, INT64_MAX);
  largest.root = INT32_MAX;
  largest.prescale = 0.5;
  constexpr std::size_t kSlots = 1000;
  WordsWriter writer(UINT64_MAX, UINT64_MAX);
  EXPECT_TRUE(writer.add(largest));
  for (std::size_t slot = 0; slot < kSlots; ++slot) writer.add_waiting(UINT32_MAX);
  const std::size_t bytes = writer.take().size();
  EXPECT_LE(bytes, most_words_bytes(kWorld, kSlots));
  EXPECT_GT(bytes, most_words_bytes(kWorld, kSlots) - kMaxTensors * 10);
}

TEST(Words, OfNoRankAreRefused) {
  const auto refused = [](const Request& request) {
    const Result<Words> read = read_words(written({request}), kWorld);
    return !read.ok() && read.status().code() == Code::kInternal;
  };
  EXPECT_TRUE(refused(make_request(Kind::kAllReduce, "x", {{-1}})));
  EXPECT_TRUE(refused(make_request(Kind::kAllGather, "x", {{}})));
  Request request = make_request(Kind::kAddSet, "x");
  request.ranks = {0, 3};
  EXPECT_TRUE(refused(request));
  request.ranks = {1, 0};
  EXPECT_TRUE(refused(request)) << "in no order";
  request = make_request(Kind::kAllToAll, "x", {{4}});
  request.splits = {1, 1};
  EXPECT_TRUE(refused(request));
  request = make_request(Kind::kAllReduce, "x");
  request.postscale = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE(refused(request));
  request = make_request(Kind::kAllReduce, "x");
  request.op = kernels::ReduceOp::kPremulSum;
  EXPECT_TRUE(refused(request));
}

// A number has one form: bytes that are read can be written in one way only, to the last one.
TEST(Words, DamagedOnesAreRefusedOrMeanSomething) {
  const std::string whole = written(some_requests());
  for (std::size_t bytes = 0; bytes < whole.size(); ++bytes) {
    (void)read_words(std::string_view(whole).substr(0, bytes), kWorld);
  }
  std::mt19937 random(5);
  int read_again = 0;
  for (int turn = 0; turn < 20'000; ++turn) {
    std::string damaged = whole;
    damaged[random() % damaged.size()] ^= static_cast<char>(1 << random() % 8);
    Result<Words> read = read_words(damaged, kWorld);
    if (!read.ok()) continue;
    WordsWriter writer(read->round, read->digest);
    for (const Request& request : read->requests) EXPECT_TRUE(writer.add(request));
    for (const std::uint32_t slot : read->waiting_slots) writer.add_waiting(slot);
    EXPECT_EQ(writer.take(), damaged);
    ++read_again;
  }
  EXPECT_GT(read_again, 1000);
}

TEST(Words, ThatAreCutOffAreRefused) {
  const std::string whole = written({make_request(Kind::kAllReduce, "name", {{1, 2}})});
  int refused = 0;
  for (std::size_t bytes = 0; bytes < whole.size(); ++bytes) {
    refused += read_words(std::string_view(whole).substr(0, bytes), kWorld).ok() ? 0 : 1;
  }
  // Whole items may be left out: the head alone, and either number of slots.
  EXPECT_EQ(refused, static_cast<int>(whole.size()) - 3);
}

}  // namespace
}  // namespace taco::pg::controller
