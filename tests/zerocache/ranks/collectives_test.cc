// Tests calls that a group need not have of its own.
#include "zerocache/ranks/collectives.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "support/gathering_threads.h"

namespace taco::zerocache {
namespace {

using testing::GatheringThreads;

// A group that can only gather.
class Gatherer : public Collectives {
 public:
  explicit Gatherer(Collectives& ranks) : ranks_(ranks) {}
  int rank() const override { return ranks_.rank(); }
  int size() const override { return ranks_.size(); }
  Result<std::unique_ptr<Work>> all_gather(std::span<const std::byte> own,
                                           std::span<std::byte> all) override {
    return ranks_.all_gather(own, all);
  }

 private:
  Collectives& ranks_;
};

std::vector<float> values_of(int rank, std::size_t count) {
  std::mt19937 random(static_cast<unsigned>(rank));
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

TEST(Collectives, SumsAreThoseOfAGroupThatAddsByRisingRank) {
  for (const int size : {1, 2, 5}) {
    SCOPED_TRACE("ranks: " + std::to_string(size));
    GatheringThreads group(size);
    group.run([&](Collectives& ranks) {
      Gatherer gatherer(ranks);
      const std::size_t count = 1000;
      const auto given = values_of(ranks.rank(), count * static_cast<std::size_t>(size));
      std::vector<float> sums(count), also(count), plain(count);
      auto first = gatherer.reduce_scatter(given, sums);
      auto second = ranks.reduce_scatter(given, also);
      ASSERT_TRUE(first.ok() && second.ok());
      EXPECT_TRUE((*first)->wait().ok());
      EXPECT_TRUE((*second)->wait().ok());
      EXPECT_EQ(std::memcmp(sums.data(), also.data(), count * sizeof(float)), 0);
      for (int rank = 0; rank < size; ++rank) {
        const auto of_rank = values_of(rank, count * static_cast<std::size_t>(size));
        for (std::size_t i = 0; i < count; ++i) {
          const float value = of_rank[static_cast<std::size_t>(ranks.rank()) * count + i];
          plain[i] = rank == 0 ? value : plain[i] + value;
        }
      }
      EXPECT_EQ(sums, plain);
    });
  }
}

TEST(Collectives, ASumThatNobodyWaitsForEndsAllTheSame) {
  GatheringThreads group(2);
  group.run([&](Collectives& ranks) {
    Gatherer gatherer(ranks);
    const std::vector<float> given(20);
    std::vector<float> sums(10);
    EXPECT_TRUE(gatherer.reduce_scatter(given, sums).ok());
  });
}

TEST(Collectives, ASumOfAGroupThatHasFailedFails) {
  GatheringThreads group(2);
  group.fail_at(0);
  group.run([&](Collectives& ranks) {
    Gatherer gatherer(ranks);
    const std::vector<float> given(20);
    std::vector<float> sums(10);
    EXPECT_EQ(gatherer.reduce_scatter(given, sums).status().code(), Code::kPeerLost);
  });
}

}  // namespace
}  // namespace taco::zerocache
