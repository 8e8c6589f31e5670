// Responses of several requests: which come together, in which order, and the memory that they use.
#include "pg/controller/fusion.h"

#include <gtest/gtest.h>

#include "pg/controller/fusion_buffer.h"
#include "support/negotiating_ranks.h"

namespace taco::pg::controller {
namespace {

Agreed agreed(std::string name, std::int64_t floats, Kind kind = Kind::kAllReduce) {
  Agreed made;
  made.request = make_request(kind, std::move(name), {{floats}});
  made.bytes = bytes_of(made.request);
  return made;
}

// Names of each response: "a b".
std::vector<std::string> fused(std::vector<Agreed> all, std::uint64_t fusion_bytes) {
  std::vector<std::string> names;
  for (const Response& response : fuse(all, fusion_bytes, 0)) {
    std::string& each = names.emplace_back();
    for (const Request& request : response.requests) {
      each += (each.empty() ? "" : " ") + request.name;
    }
  }
  return names;
}

using Names = std::vector<std::string>;

TEST(Fusion, GathersUpToAThreshold) {
  const std::vector<Agreed> all = {agreed("a", 2), agreed("b", 2), agreed("c", 1), agreed("d", 3)};
  EXPECT_EQ(fused(all, 16), (Names{"a b", "c d"}));
  EXPECT_EQ(fused(all, 15), (Names{"a", "b c", "d"}));
  EXPECT_EQ(fused(all, 1 << 20), (Names{"a b c d"}));
  EXPECT_EQ(fused(all, 0), (Names{"a", "b", "c", "d"}));
}

TEST(Fusion, ALargeRequestRunsAloneAndEndsNothing) {
  EXPECT_EQ(fused({agreed("a", 1), agreed("large", 100), agreed("b", 1)}, 40),
            (Names{"a b", "large"}));
}

TEST(Fusion, OnlyWhatRunsAlikeComesTogether) {
  std::vector<Agreed> all;
  for (int i = 0; i < 2; ++i) {
    for (int k = 0; k < 6; ++k) all.push_back(agreed(std::to_string(k), 1));
    Agreed* const last = &all[all.size() - 6];
    last[1].request.dtype = kernels::Dtype::kF16;
    last[2].request.op = kernels::ReduceOp::kAvg;
    last[3].request.prescale = 2;
    last[4].request.postscale = 2;
    last[5].zeros = {1};
  }
  EXPECT_EQ(fused(all, 1 << 20), (Names{"0 0", "1 1", "2 2", "3 3", "4 4", "5 5"}));
}

TEST(Fusion, OtherKindsAndFailuresStandAlone) {
  Agreed failed = agreed("failed", 1);
  failed.error = Status(Code::kMismatch, "no");
  EXPECT_EQ(fused({agreed("a", 1), agreed("g", 1, Kind::kAllGather), failed,
                   agreed("s", 1, Kind::kAdasum), agreed("b", 1), failed},
                  1 << 20),
            (Names{"a b", "g", "failed", "s", "failed"}));
}

TEST(Fusion, SaysWhoGivesZeros) {
  Agreed one = agreed("a", 1);
  one.zeros = {0, 4};
  for (const int rank : {0, 3, 4}) {
    std::vector<Agreed> all = {one};
    const std::vector<Response> responses = fuse(all, 0, rank);
    EXPECT_EQ(responses[0].stands_for_joined, rank != 3);
    EXPECT_EQ(responses[0].joined, 2);
  }
}

// Arenas have whole pages, of 2 MiB at most here.
constexpr std::size_t kPage = 2 << 20;

TEST(FusionBuffer, HasNoMoreThanItKeepsWhereThatIsEnough) {
  constexpr std::size_t kKept = (65 << 20) + 1;
  FusionBuffer buffer(kKept);
  for (const std::size_t bytes : {std::size_t{1}, kKept / 2, kKept - 1, kKept}) {
    Result<std::byte*> memory = buffer.take(bytes);
    ASSERT_TRUE(memory.ok()) << memory.status().message();
    EXPECT_GE(buffer.size(), bytes);
    EXPECT_LE(buffer.size(), kKept + kPage);
    buffer.give();
  }
  std::byte* const before = *buffer.take(1);
  buffer.give();
  EXPECT_EQ(*buffer.take(kKept), before) << "it is kept";
  buffer.give();
}

TEST(FusionBuffer, GivesBackWhatIsMore) {
  FusionBuffer buffer(kPage);
  ASSERT_TRUE(buffer.take(2 * kPage).ok());
  EXPECT_GE(buffer.size(), 2 * kPage);
  buffer.give();
  EXPECT_EQ(buffer.size(), 0u);
  FusionBuffer none(0);
  ASSERT_TRUE(none.take(1).ok());
  none.give();
  EXPECT_EQ(none.size(), 0u);
}

}  // namespace
}  // namespace taco::pg::controller
