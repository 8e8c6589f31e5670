// How a disagreement is told. What differs is tried in negotiation_test.cc.
#include "pg/controller/agreement.h"

#include <gtest/gtest.h>

#include "support/negotiating_ranks.h"

namespace taco::pg::controller {
namespace {

Variant variant(std::vector<int> ranks, std::vector<Shape> shapes, Kind kind = Kind::kAllReduce) {
  return {.request = make_request(kind, "x", std::move(shapes)), .ranks = std::move(ranks)};
}

TEST(NegotiationAgreement, SidesAreShownInTheOrderOfTheirRanks) {
  EXPECT_EQ(
      agreement_of({variant({1, 4}, {{2}}), variant({0, 2, 3}, {{3}}), variant({5}, {{2, 1}})})
          .message(),
      "the ranks submitted 'x' with different shapes or dtypes. ranks 0, 2, 3: float32 [3]; "
      "ranks 1, 4: float32 [2]; rank 5: float32 [2, 1]");
}

TEST(NegotiationAgreement, ATextShowsSomeOfVeryManySides) {
  std::vector<Variant> variants;
  for (int rank = 0; rank < 20; ++rank) variants.push_back(variant({rank}, {{rank}}));
  const std::string text = agreement_of(variants).message();
  EXPECT_NE(text.find("rank 7: float32 [7]; and 12 more"), std::string::npos) << text;
  EXPECT_EQ(text.find("[8]"), std::string::npos) << text;
}

TEST(NegotiationAgreement, TheTensorOfAGroupedCallIsNamed) {
  const std::string text =
      agreement_of({variant({0}, {{1}, {2}, {}}), variant({1}, {{1}, {2}, {1}})}).message();
  EXPECT_NE(text.find("of tensor 2 of 3. rank 0: float32 []; rank 1: float32 [1]"),
            std::string::npos)
      << text;
}

TEST(NegotiationAgreement, FirstDimensionsOfGatheredTensorsAreTheirOwn) {
  EXPECT_TRUE(agreement_of({variant({0}, {{1, 2}}, Kind::kAllGather),
                            variant({1}, {{5, 2}}, Kind::kAllGather)})
                  .ok());
  const std::string text = agreement_of({variant({0}, {{1, 2}}, Kind::kAllGather),
                                         variant({1}, {{5, 2}}, Kind::kAllGather),
                                         variant({2}, {{5}}, Kind::kAllGather)})
                               .message();
  EXPECT_NE(text.find("ranks 0, 1: float32 [*, 2]; rank 2: float32 [*]"), std::string::npos)
      << text;
}

TEST(NegotiationAgreement, ANameCannotWriteToATerminal) {
  Variant other = variant({1}, {{2}});
  other.request.name = "x\x1b[2J";
  Variant one = other;
  one.request.shapes = {{1}};
  one.ranks = {0};
  EXPECT_EQ(agreement_of({one, other}).message().find('\x1b'), std::string::npos);
}

TEST(NegotiationAgreement, RowsAreThoseOfEachRank) {
  using Rows = std::vector<std::vector<std::int64_t>>;
  EXPECT_EQ(rows_of({variant({0, 2}, {{4}, {1}}, Kind::kAllGather),
                     variant({1}, {{0}, {9}}, Kind::kAllGather)},
                    3),
            (Rows{{4, 0, 4}, {1, 9, 1}}));
  EXPECT_TRUE(rows_of({variant({0, 1}, {{4}})}, 2).empty());
}

TEST(NegotiationAgreement, RanksAreCountedInRuns) {
  EXPECT_EQ(ranks_text({3}), "rank 3");
  EXPECT_EQ(ranks_text({0, 1}), "ranks 0, 1");
  EXPECT_EQ(ranks_text({0, 1, 2, 5, 7, 8, 9}), "ranks 0-2, 5, 7-9");
}

}  // namespace
}  // namespace taco::pg::controller
