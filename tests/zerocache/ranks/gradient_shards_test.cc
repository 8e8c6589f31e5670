// Gradients that ranks average, against sums over plain arrays: the same bits.
#include "zerocache/ranks/zero1/gradient_shards.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "support/gathering_threads.h"
#include "support/plain_model.h"
#include "support/rank_gradients.h"

namespace taco::zerocache {
namespace {

using testing::Floats;
using testing::GatheringThreads;
using testing::mean_gradients;
using testing::PlainModel;
using testing::RankGradients;

constexpr std::size_t kPage = 4096;

struct Rank {
  PlainModel model;
  Layout layout;
  std::vector<std::uint32_t> tensors;
  Stripes stripes;
  Lockstep lockstep;
  GradientShards shards;
  int rank, size;

  static std::vector<std::uint32_t> all_of(const Layout& layout) {
    std::vector<std::uint32_t> tensors(layout.tensors().size());
    std::iota(tensors.begin(), tensors.end(), 0);
    return tensors;
  }
  explicit Rank(Collectives& ranks, std::uint32_t seed = 3)
      : model(seed),
        layout(std::move(Layout::make(model.specs(), kPage)).value()),
        tensors(all_of(layout)),
        stripes(layout, tensors, ranks.rank(), ranks.size()),
        lockstep(ranks),
        shards(ranks, lockstep, layout, stripes, tensors),
        rank(ranks.rank()),
        size(ranks.size()) {
    EXPECT_TRUE(lockstep.begin_run("train").ok());
  }

  // As in a backward pass.
  Status add_all(const RankGradients& gradients, std::vector<std::uint32_t> except = {}) {
    for (auto at = tensors.rbegin(); at != tensors.rend(); ++at) {
      if (std::find(except.begin(), except.end(), *at) != except.end()) continue;
      TACO_RETURN_IF_ERROR(shards.add(gradients.final_gradient(*at)));
    }
    return {};
  }
  // Checks that there is a mean on the pages that this rank owns, and on no others.
  void expect_means(const std::vector<Floats>& means) {
    for (PageId page = 0; page < layout.pages(); ++page) {
      const std::span<const float> mean = shards.on(page);
      EXPECT_EQ(mean.empty(), !stripes.owns(page) || layout.tensors_on(page).empty());
      if (mean.empty()) continue;
      const std::uint64_t start = std::uint64_t{page} * kPage;
      for (const std::uint32_t index : layout.tensors_on(page)) {
        const PlacedTensor& tensor = layout.tensors()[index];
        const std::uint64_t begin = std::max(tensor.offset, start);
        const std::uint64_t end = std::min(tensor.offset + tensor.bytes, start + kPage);
        EXPECT_EQ(std::memcmp(mean.data() + (begin - start) / tensor.element_bytes,
                              means[index].data() + (begin - tensor.offset) / tensor.element_bytes,
                              (end - begin) / tensor.element_bytes * sizeof(float)),
                  0)
            << tensor.name << " on page " << page;
      }
    }
  }
};

TEST(GradientShards, EachRankHasTheMeansOfItsPages) {
  for (const int size : {1, 2, 3, 5}) {
    SCOPED_TRACE("ranks: " + std::to_string(size));
    GatheringThreads group(size);
    group.run([&](Collectives& ranks) {
      Rank own(ranks);
      for (int pass = 0; pass < 3; ++pass) {
        const RankGradients gradients(own.model, ranks.rank(), pass);
        ASSERT_TRUE(own.add_all(gradients).ok());
        EXPECT_FALSE(own.shards.has(0));
        ASSERT_TRUE(own.shards.finish().ok());
        own.expect_means(mean_gradients(own.model, size, pass));
        for (const std::uint32_t tensor : own.tensors) EXPECT_TRUE(own.shards.has(tensor));
        std::vector<std::uint32_t> done = own.shards.take_done();
        std::sort(done.begin(), done.end());
        EXPECT_EQ(done, own.tensors);
        own.shards.clear();
        EXPECT_FALSE(own.shards.has(0));
        EXPECT_TRUE(own.shards.on(static_cast<PageId>(ranks.rank())).empty());
      }
    });
  }
}

TEST(GradientShards, GradientsAreAveragedAndGivenUpWhileTheBackwardPassGoesOn) {
  GatheringThreads group(2);
  group.run([&](Collectives& ranks) {
    Rank own(ranks);
    const RankGradients gradients(own.model, ranks.rank(), 0);
    std::size_t max_kept = 0, kept = 0;
    for (auto at = own.tensors.rbegin(); at != own.tensors.rend(); ++at) {
      ASSERT_TRUE(own.shards.add(gradients.final_gradient(*at)).ok());
      kept += 1;
      kept -= own.shards.take_done().size();
      max_kept = std::max(max_kept, kept);
    }
    ASSERT_TRUE(own.shards.finish().ok());
    EXPECT_LT(max_kept, own.tensors.size());
  });
  EXPECT_GE(group.max_open(), 2);
}

TEST(GradientShards, SeveralPassesAddUp) {
  GatheringThreads group(3);
  group.run([&](Collectives& ranks) {
    Rank own(ranks);
    for (int pass = 0; pass < 2; ++pass) {
      const RankGradients gradients(own.model, ranks.rank(), pass);
      ASSERT_TRUE(own.add_all(gradients).ok());
      ASSERT_TRUE(own.shards.finish().ok());
    }
    std::vector<Floats> sums = mean_gradients(own.model, 3, 0);
    const std::vector<Floats> more = mean_gradients(own.model, 3, 1);
    for (std::size_t i = 0; i < sums.size(); ++i) {
      for (std::size_t k = 0; k < sums[i].size(); ++k) sums[i][k] += more[i][k];
    }
    own.expect_means(sums);
  });
}

TEST(GradientShards, WhatHasNoGradientIsLeftOut) {
  GatheringThreads group(2);
  group.run([&](Collectives& ranks) {
    Rank own(ranks);
    const RankGradients gradients(own.model, ranks.rank(), 0);
    ASSERT_TRUE(own.add_all(gradients, {3, 8}).ok());
    ASSERT_TRUE(own.shards.finish().ok());
    EXPECT_FALSE(own.shards.has(3));
    EXPECT_TRUE(own.shards.has(4));
    for (PageId page = 0; page < own.layout.pages(); ++page) {
      if (own.shards.on(page).empty()) continue;
      for (const std::uint32_t index : own.layout.tensors_on(page)) {
        if (own.shards.has(index)) continue;
        const PlacedTensor& tensor = own.layout.tensors()[index];
        const std::uint64_t start = std::uint64_t{page} * kPage;
        const std::uint64_t begin = std::max(tensor.offset, start);
        EXPECT_EQ(own.shards.on(page)[(begin - start) / tensor.element_bytes], 0);
      }
    }
    // The next pass is as any other.
    own.shards.clear();
    ASSERT_TRUE(own.add_all(gradients).ok());
    ASSERT_TRUE(own.shards.finish().ok());
    own.expect_means(mean_gradients(own.model, 2, 0));
  });
}

TEST(GradientShards, RanksWithDifferentGradientsAllHearOfIt) {
  for (const std::uint32_t missing : {0u, 6u, 11u}) {
    GatheringThreads group(3);
    group.run([&](Collectives& ranks) {
      Rank own(ranks);
      const RankGradients gradients(own.model, ranks.rank(), 0);
      Status status = own.add_all(
          gradients, ranks.rank() == 1 ? std::vector{missing} : std::vector<std::uint32_t>());
      if (status.ok()) status = own.shards.finish();
      // The last one that is given is missed when something else is to be done.
      if (status.ok()) status = own.lockstep.barrier("step", {});
      EXPECT_EQ(status.code(), Code::kMismatch);
      own.shards.clear();
      EXPECT_TRUE(own.lockstep.begin_run("train").ok());
      ASSERT_TRUE(own.add_all(gradients).ok());
      ASSERT_TRUE(own.shards.finish().ok());
      own.expect_means(mean_gradients(own.model, 3, 0));
    });
  }
}

TEST(GradientShards, WhatMakesNoSenseIsRefusedByName) {
  GatheringThreads group(1);
  group.run([&](Collectives& ranks) {
    Rank own(ranks);
    const RankGradients gradients(own.model, 0, 0);
    const std::uint32_t trained[] = {0, 1};
    GradientShards some(ranks, own.lockstep, own.layout, own.stripes, trained);
    EXPECT_EQ(some.add(gradients.final_gradient(7)).message(),
              "parameter 'p7' has a gradient, but is not trained");
    EXPECT_EQ(some.add({1, nullptr, false}).message(), "parameter 'p1' has an empty gradient");
    ASSERT_TRUE(some.add(gradients.final_gradient(1)).ok());
    EXPECT_EQ(some.add(gradients.final_gradient(1)).message(),
              "parameter 'p1' has two gradients in one backward pass");
  });
}

TEST(GradientShards, NormsAreThoseOfAllRanksOnAll) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const double order : {2.0, 1.0, 3.5, kInfinity}) {
    SCOPED_TRACE(order);
    std::vector<double> norms(3);
    GatheringThreads group(3);
    group.run([&](Collectives& ranks) {
      Rank own(ranks);
      const RankGradients gradients(own.model, ranks.rank(), 0);
      ASSERT_TRUE(own.add_all(gradients).ok());
      ASSERT_TRUE(own.shards.finish().ok());
      auto norm = own.shards.norm(order);
      ASSERT_TRUE(norm.ok());
      norms[static_cast<std::size_t>(ranks.rank())] = norm.value();
      double sum = 0, largest = 0;
      for (const Floats& mean : mean_gradients(own.model, 3, 0)) {
        for (const float value : mean) {
          sum += std::pow(std::fabs(static_cast<double>(value)), order);
          largest = std::max(largest, std::fabs(static_cast<double>(value)));
        }
      }
      const double plain = order == kInfinity ? largest : std::pow(sum, 1 / order);
      EXPECT_NEAR(norm.value(), plain, 1e-9 * plain);
    });
    EXPECT_EQ(norms[0], norms[1]);
    EXPECT_EQ(norms[0], norms[2]);
  }
}

TEST(GradientShards, ANormOfWhatIsNoNumberIsNone) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  GatheringThreads group(2);
  group.run([&](Collectives& ranks) {
    Rank own(ranks);
    const RankGradients gradients(own.model, ranks.rank(), 0);
    ASSERT_TRUE(own.add_all(gradients).ok());
    std::vector<float> spoilt(own.layout.tensors()[0].bytes / sizeof(float), NAN);
    own.shards.clear();
    ASSERT_TRUE(own.shards.add({0, spoilt.data(), false}).ok());
    ASSERT_TRUE(own.shards.finish().ok());
    EXPECT_TRUE(std::isnan(own.shards.norm(2).value()));
    EXPECT_TRUE(std::isnan(own.shards.norm(kInfinity).value()));
  });
}

TEST(GradientShards, WhatALossWasScaledByIsTakenOutOfAllMeans) {
  constexpr float kFactor = 0.25F;
  for (const float odd : {1.0F, NAN, INFINITY}) {
    SCOPED_TRACE(odd);
    GatheringThreads group(3);
    group.run([&](Collectives& ranks) {
      Rank own(ranks);
      const RankGradients gradients(own.model, ranks.rank(), 0);
      ASSERT_TRUE(own.add_all(gradients, {0}).ok());
      Floats first = gradients.values(0);
      if (ranks.rank() == 1 && odd != 1) first.front() = odd;  // of one rank, on a page of one
      ASSERT_TRUE(own.shards.add({0, first.data(), false}).ok());
      ASSERT_TRUE(own.shards.finish().ok());
      const auto found = own.shards.unscale(kFactor);
      ASSERT_TRUE(found.ok()) << found.status().message();
      EXPECT_EQ(found.value(), odd != 1);
      std::vector<Floats> means = mean_gradients(own.model, 3, 0);
      for (Floats& mean : means) {
        for (float& value : mean) value *= kFactor;
      }
      if (odd == 1) own.expect_means(means);
    });
  }
}

TEST(GradientShards, RanksThatUnscaleOtherwiseAllHearOfIt) {
  GatheringThreads group(2);
  group.run([&](Collectives& ranks) {
    Rank own(ranks);
    const RankGradients gradients(own.model, ranks.rank(), 0);
    ASSERT_TRUE(own.add_all(gradients).ok());
    ASSERT_TRUE(own.shards.finish().ok());
    // As close as two factors can be.
    const auto found = own.shards.unscale(ranks.rank() == 0 ? 0.1F : std::nextafter(0.1F, 1.0F));
    EXPECT_EQ(found.status().code(), Code::kMismatch);
    EXPECT_NE(found.status().message().find("to multiply gradients by 0.1"), std::string::npos)
        << found.status().message();
    own.expect_means(mean_gradients(own.model, 2, 0));
  });
}

TEST(GradientShards, AGroupThatFailsEndsItWithoutHarm) {
  for (std::size_t at = 0; at < 20; at += 3) {
    GatheringThreads group(2);
    group.fail_at(at);
    group.run([&](Collectives& ranks) {
      Rank own(ranks);
      const RankGradients gradients(own.model, ranks.rank(), 0);
      Status status = own.add_all(gradients);
      if (status.ok()) status = own.shards.finish();
      EXPECT_EQ(status.code(), Code::kPeerLost);
    });
  }
}

}  // namespace
}  // namespace taco::zerocache
