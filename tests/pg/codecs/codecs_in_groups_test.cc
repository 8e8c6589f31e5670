// The codecs of gradients in whole groups of ranks: all of them end with the same bits, sums are as
// exact as they can be, and what has not been sent is still there.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "pg/algorithms/gradient_shard.h"
#include "pg/codecs/feedback.h"
#include "pg/codecs/half_codec.h"
#include "pg/codecs/top_k_codec.h"
#include "support/coded_blocks.h"
#include "support/rank_threads.h"

namespace taco::pg {
namespace {

using kernels::ReduceOp;
using taco::testing::RankOptions;
using taco::testing::RankThreads;
using testing::bits_of;
using testing::Floats;
using testing::normal_values;

// 2 x 2 ranks; hosts with 2, 2 and 1; hosts with 3 and 2; one host in groups of 2.
std::vector<RankOptions> layouts() {
  return {{.world = 4, .seed = 3, .ranks_per_host = 2},
          {.world = 5, .seed = 4, .ranks_per_host = 2},
          {.world = 5, .seed = 5, .ranks_per_host = 3},
          {.world = 4, .seed = 6, .intra_size = 2}};
}

OperationSpec sum_of(Floats& values, std::shared_ptr<const Codec> codec,
                     ReduceOp op = ReduceOp::kSum) {
  OperationSpec spec{.kind = Kind::kAllReduce, .dtype = kernels::Dtype::kF32, .op = op};
  const Piece piece{reinterpret_cast<std::byte*>(values.data()), values.size() * sizeof(float)};
  spec.inputs = {piece};
  spec.outputs = {piece};
  spec.codec = std::move(codec);
  return spec;
}

Floats whole_numbers(std::size_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Floats values(count);
  for (float& value : values) value = static_cast<float>(static_cast<int>(random() % 201) - 100);
  return values;
}

std::vector<double> total_of(const std::vector<Floats>& all) {
  std::vector<double> sum(all.empty() ? 0 : all[0].size());
  for (const Floats& values : all) {
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += values[i];
  }
  return sum;
}

void expect_same_on_all_ranks(const std::vector<Floats>& results) {
  for (std::size_t rank = 1; rank < results.size(); ++rank) {
    ASSERT_EQ(bits_of(results[rank]), bits_of(results[0])) << "ranks 0 and " << rank;
  }
}

TEST(CodecsInGroups, sixteen_bits_lose_one_rounding_on_each_leg) {
  for (const RankOptions& layout : layouts()) {
    RankThreads ranks(layout);
    for (const HalfFormat format : {HalfFormat::kF16, HalfFormat::kBF16}) {
      const auto codec = half_codec(format);
      SCOPED_TRACE(std::to_string(layout.seed) + " " + codec->name());
      std::vector<Floats> gradients, results(layout.world);
      for (int rank = 0; rank < layout.world; ++rank) {
        gradients.push_back(normal_values(100'003, rank + 1, 1e6f));
      }
      ranks.run([&](int rank, Communicator& group) {
        results[rank] = gradients[rank];
        const auto operation = *group.start(sum_of(results[rank], codec, ReduceOp::kAvg));
        const Status status = operation->wait(0);
        ASSERT_TRUE(status.ok()) << status.message();
        EXPECT_STREQ(operation->algorithm(), "two_dimensional_coded");
      });
      expect_same_on_all_ranks(results);
      const std::vector<double> sums = total_of(gradients);
      // The rounding step of each host's part, and of the sum; both are a few millions at most.
      const double step = format == HalfFormat::kF16 ? 1.0 / 2048 : 1.0 / 256;
      for (std::size_t i = 0; i < sums.size(); ++i) {
        ASSERT_NEAR(results[0][i], sums[i] / layout.world, 4 * 5e6 * step) << i;
      }
    }
  }
}

// Each host's sum is rounded once on its way, the owner's host's not at all.
TEST(CodecsInGroups, a_reduce_scatter_in_sixteen_bits_rounds_once) {
  constexpr std::size_t kBlock = 20'003;
  for (const RankOptions& layout : layouts()) {
    RankThreads ranks(layout);
    for (const HalfFormat format : {HalfFormat::kF16, HalfFormat::kBF16}) {
      const auto codec = half_codec(format);
      SCOPED_TRACE(std::to_string(layout.seed) + " " + codec->name());
      std::vector<Floats> gradients, results(layout.world, Floats(kBlock));
      for (int rank = 0; rank < layout.world; ++rank) {
        gradients.push_back(normal_values(kBlock * layout.world, rank + 1, 1e6f));
      }
      ranks.run([&](int rank, Communicator& group) {
        OperationSpec spec = sum_of(results[rank], codec, ReduceOp::kAvg);
        spec.kind = Kind::kReduceScatter;
        auto* bytes = reinterpret_cast<std::byte*>(gradients[rank].data());
        constexpr std::size_t kBytes = kBlock * sizeof(float);
        spec.inputs.clear();
        for (int r = 0; r < layout.world; ++r) spec.inputs.push_back({bytes + r * kBytes, kBytes});
        const auto operation = *group.start(std::move(spec));
        const Status status = operation->wait(0);
        ASSERT_TRUE(status.ok()) << status.message();
        EXPECT_STREQ(operation->algorithm(), "two_dimensional_coded");
      });
      const std::vector<double> sums = total_of(gradients);
      const double step = format == HalfFormat::kF16 ? 1.0 / 2048 : 1.0 / 256;
      double worst = 0;
      for (int rank = 0; rank < layout.world; ++rank) {
        for (std::size_t i = 0; i < kBlock; ++i) {
          const double exact = sums[rank * kBlock + i] / layout.world;
          worst = std::max(worst, std::abs(results[rank][i] - exact));
        }
      }
      EXPECT_LT(worst, 5e6 * step) << "of what each host sends, a few millions at most";
      EXPECT_GT(worst, 1e3 * step) << "else nothing was rounded";
    }
  }
}

class TopKInGroups : public ::testing::TestWithParam<TopKSettings> {
 protected:
  // All-reduces one gradient of each rank; each has its own Feedback.
  void reduce(RankThreads& ranks, std::vector<Floats>& gradients) {
    ranks.run([&](int rank, Communicator& group) {
      if (feedback_[rank] == nullptr) feedback_[rank] = feedback_for(group, gradients[rank].size());
      OperationSpec spec = sum_of(gradients[rank], codec_);
      spec.feedback = feedback_[rank];
      const auto operation = *group.start(std::move(spec));
      const Status status = operation->wait(0);
      ASSERT_TRUE(status.ok()) << status.message();
      EXPECT_STREQ(operation->algorithm(), "two_dimensional_sparse");
    });
    expect_same_on_all_ranks(gradients);
  }
  void start(const RankOptions& layout) {
    feedback_.assign(layout.world, nullptr);
    codec_ = *top_k_codec(GetParam());
  }
  std::shared_ptr<Feedback> feedback_for(const Communicator& group, std::size_t count) const {
    auto feedback = std::make_shared<Feedback>();
    const Shard shard = gradient_shard(count * sizeof(float), sizeof(float), group.topology(),
                                       group.options().rank);
    feedback->residual.resize(shard.bytes / sizeof(float));
    feedback->undoable = true;
    return feedback;
  }
  void add_kept(std::vector<double>& sum, RankThreads& ranks) const {
    for (std::size_t rank = 0; rank < feedback_.size(); ++rank) {
      const Shard shard =
          gradient_shard(sum.size() * sizeof(float), sizeof(float),
                         ranks.group(static_cast<int>(rank)).topology(), static_cast<int>(rank));
      const Floats& residual = feedback_[rank]->residual;
      for (std::size_t i = 0; i < residual.size(); ++i) {
        sum[shard.offset / sizeof(float) + i] += residual[i];
      }
    }
  }
  // Checks gradients of `count` whole numbers, which float32 adds exactly.
  void nothing_is_lost(const RankOptions& layout, std::size_t count, std::uint64_t steps) {
    SCOPED_TRACE(layout.seed);
    RankThreads ranks(layout);
    start(layout);
    std::vector<double> given(count), got(count);
    for (std::uint64_t step = 0; step < steps; ++step) {
      std::vector<Floats> gradients;
      for (int rank = 0; rank < layout.world; ++rank) {
        gradients.push_back(whole_numbers(count, 100 * step + rank));
      }
      const std::vector<double> sums = total_of(gradients);
      reduce(ranks, gradients);
      for (std::size_t i = 0; i < count; ++i) {
        given[i] += sums[i];
        got[i] += gradients[0][i];
      }
      if (GetParam().ratio == 1) {
        EXPECT_EQ(got, given) << "all of it was sent";
      }
    }
    add_kept(got, ranks);
    EXPECT_EQ(got, given);
  }

  std::shared_ptr<const Codec> codec_;
  std::vector<std::shared_ptr<Feedback>> feedback_;
};
INSTANTIATE_TEST_SUITE_P(Codecs, TopKInGroups,
                         ::testing::Values(TopKSettings{.ratio = 0.01},
                                           TopKSettings{.ratio = 0.2, .f16_values = true},
                                           TopKSettings{.ratio = 1}));

TEST_P(TopKInGroups, what_arrives_and_what_is_kept_add_up_to_all_gradients) {
  for (const RankOptions& layout : layouts()) nothing_is_lost(layout, 30'001, 5);
}

// Longer than a processor's own caches, in several turns.
TEST_P(TopKInGroups, long_gradients_lose_nothing_either) {
  for (const RankOptions& layout : {layouts()[0], layouts()[1]}) {
    nothing_is_lost(layout, 2'000'003, 2);
  }
}

TEST_P(TopKInGroups, a_step_that_nobody_uses_is_sent_later) {
  constexpr std::size_t kCount = 10'000;
  const RankOptions layout = layouts()[0];
  RankThreads ranks(layout);
  start(layout);
  std::vector<double> given(kCount);
  for (std::uint64_t step = 0; step < 3; ++step) {
    std::vector<Floats> gradients;
    for (int rank = 0; rank < layout.world; ++rank) {
      gradients.push_back(whole_numbers(kCount, 100 * step + rank));
    }
    const std::vector<double> sums = total_of(gradients);
    for (std::size_t i = 0; i < kCount; ++i) given[i] += sums[i];
    reduce(ranks, gradients);
    for (const auto& feedback : feedback_) {
      restore(*feedback, {0, feedback->residual.size()});
      forget_sent_but(*feedback, {});
    }
  }
  std::vector<double> kept(kCount);
  add_kept(kept, ranks);
  EXPECT_EQ(kept, given);
}

TEST_P(TopKInGroups, nan_and_infinity_reach_all_ranks_and_no_residual) {
  const RankOptions layout = layouts()[0];
  RankThreads ranks(layout);
  start(layout);
  std::vector<Floats> gradients(layout.world, Floats(10'000, 1.0f));
  gradients[1][77] = std::numeric_limits<float>::quiet_NaN();
  gradients[2][9999] = -std::numeric_limits<float>::infinity();
  reduce(ranks, gradients);
  EXPECT_TRUE(std::isnan(gradients[0][77]));
  EXPECT_EQ(gradients[0][9999], -std::numeric_limits<float>::infinity());
  for (const auto& feedback : feedback_) {
    for (const float value : feedback->residual) ASSERT_TRUE(std::isfinite(value));
  }
}

}  // namespace
}  // namespace taco::pg
