// Steps of Adafactor that several ranks take, against those of one rank: the same bits where each
// has whole gradients; where each has its pages of them, the same on all ranks, and as close as
// sums in double are.
#include "zerocache/ranks/adafactor_ranks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "support/adafactor_model.h"
#include "support/gathering_threads.h"
#include "zerocache/ranks/lockstep.h"
#include "zerocache/ranks/zero1/gradient_shards.h"
#include "zerocache/ranks/zero1/sharded_step.h"
#include "zerocache/ranks/zero3/backward_stripes.h"
#include "zerocache/ranks/zero3/gathered_pages.h"
#include "zerocache/ranks/zero3/striped_step.h"

namespace taco::zerocache {
namespace {

using testing::AdafactorModel;
using testing::Floats;
using testing::GatheringThreads;
using testing::kShapes;

constexpr std::size_t kPage = 4096;
constexpr std::uint32_t kCount = std::size(kShapes);
constexpr std::uint32_t kNone = static_cast<std::uint32_t>(-1);

std::vector<std::string> moments_of(std::uint32_t i) {
  const std::string name = "p" + std::to_string(i);
  if (kShapes[i].elements() == 0) return {};
  if (kShapes[i].is_vector()) return {name + "/variance"};
  return {name + "/row_var", name + "/col_var"};
}

Status step_together(Collectives& ranks, AdafactorModel& model, std::span<const Update> updates) {
  const Shards shards = Shards::deal(model.layout(), model.state_layout(), model.tensors(),
                                     ranks.rank(), ranks.size());
  const Status own = model.stream().check(updates);
  TACO_RETURN_IF_ERROR(agree_on_step(ranks, model.layout(), updates, own));
  return ShardedStep(ranks, model.pages(), model.layout(), shards, model.stream(), std::nullopt)
      .run(updates);
}

// The values and moments of each parameter after some steps of one rank alone.
std::vector<Floats> values_of(AdafactorModel& model) {
  std::vector<Floats> found;
  for (std::uint32_t i = 0; i < kCount; ++i) {
    found.push_back(model.read(i));
    for (const std::string& name : moments_of(i)) found.push_back(model.state(name));
  }
  return found;
}

TEST(AdafactorRanks, WithWholeGradientsAllHaveTheBitsOfOneAlone) {
  for (const bool half : {false, true}) {
    AdafactorModel alone(1 << 20, 1, half);
    for (int t = 1; t <= 2; ++t) ASSERT_TRUE(alone.step({.weight_decay = 0.1}, t, 0.5).ok());
    const std::vector<Floats> expected = values_of(alone);
    for (const int size : {1, 2, 3}) {
      SCOPED_TRACE("ranks: " + std::to_string(size));
      GatheringThreads group(size);
      group.run([&](Collectives& ranks) {
        AdafactorModel own(kPage, 1 + static_cast<unsigned>(ranks.rank()) % 2, half);
        for (int t = 1; t <= 2; ++t) {
          const std::vector<Update> updates = own.updates({.weight_decay = 0.1}, t, 0.5);
          const Status stepped = step_together(ranks, own, updates);
          ASSERT_TRUE(stepped.ok()) << stepped.message();
        }
        const std::vector<Floats> found = values_of(own);
        ASSERT_EQ(found.size(), expected.size());
        for (std::size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(found[i] == expected[i]) << i;
      });
    }
  }
}

TEST(AdafactorRanks, StepsThatDifferAreRefusedOnAll) {
  GatheringThreads group(2);
  group.run([&](Collectives& ranks) {
    AdafactorModel own(kPage, 1, false);
    const Status stepped = step_together(ranks, own, own.updates({.clip = 1.0 + ranks.rank()}, 1));
    EXPECT_EQ(stepped.code(), Code::kMismatch);
    EXPECT_NE(stepped.message().find("'p0' would be stepped otherwise on rank 0 than on rank 1"),
              std::string::npos)
        << stepped.message();
    EXPECT_TRUE(own.read(0) == own.initial(0));
  });
}

// Whichever use it is that has no page.
TEST(AdafactorRanks, ARankWithoutAPageIsAFailureOfAll) {
  for (std::size_t use = 0; use < 90; use += 7) {
    SCOPED_TRACE("use " + std::to_string(use));
    GatheringThreads group(3);
    group.run([&](Collectives& ranks) {
      AdafactorModel own(kPage, 1, false);
      const std::vector<Update> updates = own.updates({}, 1);
      if (ranks.rank() == 1) own.pages().fail_at(use);
      const Status stepped = step_together(ranks, own, updates);
      EXPECT_EQ(stepped.code(), Code::kResource);
      EXPECT_NE(stepped.message().find("no page today"), std::string::npos) << stepped.message();
      EXPECT_EQ(stepped.message().starts_with("rank 1: "), ranks.rank() != 1);
      EXPECT_EQ(own.pages().open(), 0u);
    });
  }
}

// In parts.

// The part of each gradient that lies on this rank's pages.
PartsOf parts_for(AdafactorModel& model, const Stripes& stripes) {
  return [&](const Update& update) {
    std::vector<GradientPart> found;
    const PlacedTensor& tensor = model.layout().tensors()[update.tensor];
    const Run run = model.layout().pages_of(tensor);
    for (PageId page = run.first; page < run.first + run.count; ++page) {
      if (!stripes.owns(page)) continue;
      const std::uint64_t start = std::uint64_t{page} * kPage;
      const std::uint64_t begin = std::max(tensor.offset, start);
      const std::uint64_t end = std::min(tensor.offset + tensor.bytes, start + kPage);
      const std::size_t first = (begin - tensor.offset) / tensor.element_bytes;
      found.push_back({page,
                       first,
                       {model.gradient(update.tensor - 1).data() + first,
                        (end - begin) / tensor.element_bytes}});
    }
    return found;
  };
}

std::vector<std::byte> bytes_of(const AdafactorMeasures& measures) {
  std::vector<std::byte> all;
  for (const auto& [tensor, measure] : measures) {
    std::vector<std::byte> one(measure.bytes());
    measure.tell(one);
    all.insert(all.end(), one.begin(), one.end());
  }
  return all;
}

struct Found {
  std::vector<std::vector<std::byte>> by_rank;
  std::vector<float> factors;  // of rank 0, by parameter
};

Found measure_on(int size, unsigned threads, std::size_t memory, bool half) {
  Found found{std::vector<std::vector<std::byte>>(static_cast<std::size_t>(size)), {}};
  GatheringThreads group(size);
  group.run([&](Collectives& ranks) {
    AdafactorModel own(kPage, threads, half);
    std::vector<std::uint32_t> all = {0};
    all.insert(all.end(), own.tensors().begin(), own.tensors().end());
    const Stripes stripes(own.layout(), all, ranks.rank(), ranks.size());
    std::vector<Update> updates = own.updates({}, 1, 0.5);
    std::erase_if(updates, [](const Update& each) { return each.tensor == kCount; });  // is empty
    const auto measures =
        measure_parts(ranks, own.layout(), own.stream(), updates, parts_for(own, stripes), memory);
    ASSERT_TRUE(measures.ok()) << measures.status().message();
    found.by_rank[static_cast<std::size_t>(ranks.rank())] = bytes_of(measures.value());
    if (ranks.rank() > 0) return;
    for (const auto& [tensor, measure] : measures.value()) {
      found.factors.push_back(measure.factor());
    }
  });
  return found;
}

TEST(AdafactorRanks, InPartsAllFindTheSameWhateverThreadsAndMemory) {
  for (const bool half : {false, true}) {
    for (const int size : {1, 2, 3}) {
      SCOPED_TRACE("ranks: " + std::to_string(size));
      const Found first = measure_on(size, 1, kSumBytes, half);
      for (const auto& [threads, memory] : {std::pair{1u, std::size_t{1}}, std::pair{3u, kSumBytes},
                                            std::pair{2u, std::size_t{100'000}}}) {
        const Found other = measure_on(size, threads, memory, half);
        for (const auto& bytes : other.by_rank) EXPECT_TRUE(bytes == first.by_rank.front());
      }
      AdafactorModel alone(1 << 20, 1, half);
      const std::vector<Update> updates = alone.updates({}, 1, 0.5);
      ASSERT_EQ(first.factors.size(), kCount - 1);
      for (std::uint32_t i = 0; i + 1 < kCount; ++i) {
        const auto whole = alone.stream().measure(updates[i]);
        ASSERT_TRUE(whole.ok());
        const float factor = whole.value().factor();
        EXPECT_NEAR(first.factors[i], factor, 3e-7 * std::fabs(factor)) << "p" << i;
      }
    }
  }
}

// A rank whose parameters are spread, with gradients that are the same on all.
struct Spread {
  AdafactorModel model;
  std::vector<std::uint32_t> all = {0};
  std::optional<Stripes> stripes;
  Lockstep lockstep;
  std::optional<GatheredPages> gathered;
  std::optional<GradientShards> gradients;
  std::optional<BackwardStripes> early;
  std::optional<std::size_t> fails_at;  // of the uses of pages in a backward pass
  Collectives& ranks;

  Spread(Collectives& group, bool half) : model(kPage, 2, half), lockstep(group), ranks(group) {
    all.insert(all.end(), model.tensors().begin(), model.tensors().end());
    stripes.emplace(model.layout(), all, ranks.rank(), ranks.size());
    gathered.emplace(ranks, lockstep, model.pages(), model.layout(), *stripes, GatherOptions{});
    gradients.emplace(ranks, lockstep, model.layout(), *stripes, model.tensors());
  }
  Status step(int t) {
    TACO_RETURN_IF_ERROR(lockstep.begin_run("train"));
    std::vector<StripedUpdate> updates;
    for (const Update& update : model.updates({.weight_decay = 0.1}, t)) {
      TACO_RETURN_IF_ERROR(gradients->add({update.tensor, update.gradient, false}));
      updates.push_back({update.tensor, update.step});
    }
    TACO_RETURN_IF_ERROR(gradients->finish());
    StripedStep step(ranks, lockstep, model.layout(), *stripes, model.stream());
    TACO_RETURN_IF_ERROR(step.agree_on(updates, *gradients));
    TACO_RETURN_IF_ERROR(step.run(updates, *gradients));
    gradients->clear();
    return {};
  }
  // The same in a backward pass, after uses of all parameters; one gradient in a pass of its own.
  Status step_in_backward(int t, std::uint32_t left_out = kNone) {
    TACO_RETURN_IF_ERROR(gathered->begin_run("train"));
    TACO_RETURN_IF_ERROR(use_all());
    if (fails_at) model.pages().fail_at(*fails_at);
    if (!early) {
      const StripedStep step(ranks, lockstep, model.layout(), *stripes, model.stream());
      early.emplace(step, model.layout(), *stripes, model.stream(), *gradients, *gathered);
    }
    std::vector<Update> updates = model.updates({.weight_decay = 0.1}, t);
    std::reverse(updates.begin(), updates.end());
    for (const bool later : {false, true}) {
      for (const Update& update : updates) {
        if (later != (update.tensor == left_out)) continue;
        TACO_RETURN_IF_ERROR(early->add({update.tensor, update.gradient, false}, update.step));
      }
      TACO_RETURN_IF_ERROR(early->finish());
    }
    return {};
  }
  // Every rank has every page then; adds what it finds there.
  Status use_all(std::vector<std::byte>* found = nullptr) {
    for (const std::uint32_t tensor : model.tensors()) {
      const Run run = model.layout().pages_of(model.layout().tensors()[tensor]);
      for (PageId page = run.first; page < run.first + run.count; ++page) {
        TACO_RETURN_IF_ERROR(gathered->begin(page, {&page, 1}));
        const Access access{.page = page};
        TACO_RETURN_IF_ERROR(model.pages().begin(page, {&access, 1}));
        const std::byte* const bytes = model.pages().address(page, Tier::kDevice);
        if (found != nullptr) found->insert(found->end(), bytes, bytes + kPage);
        model.pages().end(page);
        gathered->end(page);
      }
    }
    return {};
  }
  // As the next uses find them, on every rank, whoever has stepped them.
  std::vector<std::byte> parameters() {
    std::vector<std::byte> found;
    EXPECT_TRUE(gathered->begin_run("look").ok());
    EXPECT_TRUE(use_all(&found).ok());
    gathered->end_run();
    return found;
  }
  bool owns(std::uint32_t i, std::size_t element) const {
    const PlacedTensor& tensor = model.layout().tensors()[i + 1];
    const std::uint64_t offset = tensor.offset + element * tensor.element_bytes;
    return stripes->owns(static_cast<PageId>(offset / kPage));
  }
};

TEST(AdafactorRanks, InPartsPagesAreSteppedAsCloseAsSumsInDoubleAre) {
  for (const bool half : {false, true}) {
    AdafactorModel alone(1 << 20, 1, half);
    for (int t = 1; t <= 2; ++t) ASSERT_TRUE(alone.step({.weight_decay = 0.1}, t).ok());
    std::vector<Floats> all_expected;
    for (std::uint32_t i = 0; i < kCount; ++i) all_expected.push_back(alone.read(i));
    for (const int size : {1, 2, 4}) {  // the mean of as many alike is what each has
      SCOPED_TRACE("ranks: " + std::to_string(size));
      std::mutex mutex;
      std::vector<std::size_t> stepped(kCount);  // elements, of all ranks
      std::vector<Floats> moments;               // of the first rank that is done
      GatheringThreads group(size);
      group.run([&](Collectives& ranks) {
        Spread own(ranks, half);
        for (int t = 1; t <= 2; ++t) {
          const Status status = own.step(t);
          ASSERT_TRUE(status.ok()) << status.message();
        }
        std::lock_guard lock(mutex);
        std::vector<Floats> own_moments;
        for (std::uint32_t i = 0; i < kCount; ++i) {
          const Floats values = own.model.read(i);
          const Floats& expected = all_expected[i];
          for (std::size_t k = 0; k < values.size(); ++k) {
            if (!own.owns(i, k)) continue;
            ++stepped[i];
            const double close = (half ? 0x1p-7 : 1e-6) * std::fabs(expected[k]) + 1e-7;
            ASSERT_NEAR(values[k], expected[k], close) << "p" << i << ", " << k;
          }
          for (const std::string& name : moments_of(i)) {
            own_moments.push_back(own.model.state(name));
          }
        }
        if (moments.empty()) moments = own_moments;
        EXPECT_TRUE(moments == own_moments) << "rank " << ranks.rank();
      });
      for (std::uint32_t i = 0; i < kCount; ++i) EXPECT_EQ(stepped[i], kShapes[i].elements());
    }
  }
}

TEST(AdafactorRanks, InPartsARankWithoutAPageIsAFailureOfAll) {
  for (std::size_t use = 0; use < 60; use += 7) {
    SCOPED_TRACE("use " + std::to_string(use));
    GatheringThreads group(2);
    group.run([&](Collectives& ranks) {
      Spread own(ranks, false);
      if (ranks.rank() == 1) own.model.pages().fail_at(use);
      const Status stepped = own.step(1);
      EXPECT_EQ(stepped.code(), Code::kResource);
      EXPECT_NE(stepped.message().find("no page today"), std::string::npos) << stepped.message();
      EXPECT_EQ(stepped.message().starts_with("rank 1: "), ranks.rank() != 1);
      EXPECT_EQ(own.model.pages().open(), 0u);
    });
  }
}

// In the backward pass.

// Tensors that lie on one page, on many, on many stripes; one of them comes in a pass of its own.
TEST(BackwardStripes, AdafactorStepsToTheBitsOfStepsAtTheEnd) {
  for (const bool half : {false, true}) {
    for (const int size : {1, 2, 3}) {
      for (const std::uint32_t left_out : {kNone, 1u, 3u}) {
        SCOPED_TRACE(std::to_string(size) + " ranks without " + std::to_string(left_out));
        GatheringThreads group(size);
        group.run([&](Collectives& ranks) {
          Spread usual(ranks, half), own(ranks, half);
          const std::vector<std::byte> before = own.parameters();
          for (int t = 1; t <= 2; ++t) {
            ASSERT_TRUE(usual.step(t).ok());
            const Status stepped = own.step_in_backward(t, left_out);
            ASSERT_TRUE(stepped.ok()) << stepped.message();
            EXPECT_EQ(own.early->stepped().size(), kCount);
            EXPECT_FALSE(own.early->begun());
            for (PageId page = 0; page < own.model.layout().pages(); ++page) {
              EXPECT_TRUE(own.gradients->on(page).empty()) << "a mean is kept";
            }
            own.early->forget();
          }
          for (std::uint32_t i = 0; i < kCount; ++i) {
            for (const std::string& name : moments_of(i)) {
              EXPECT_TRUE(own.model.state(name) == usual.model.state(name)) << name;
            }
          }
          const std::vector<std::byte> found = own.parameters();
          EXPECT_TRUE(found == usual.parameters());
          EXPECT_FALSE(found == before);
        });
      }
    }
  }
}

TEST(BackwardStripes, AdafactorOnARankWithoutAPageEndsTheRunOfAll) {
  for (std::size_t use = 0; use < 60; use += 7) {
    SCOPED_TRACE("use " + std::to_string(use));
    GatheringThreads group(2);
    group.run([&](Collectives& ranks) {
      Spread own(ranks, false);
      ASSERT_TRUE(own.step_in_backward(1).ok());
      own.early->forget();
      if (ranks.rank() == 1) own.fails_at = use;
      Status stepped = own.step_in_backward(2);
      // Who fails alone says so, and the others hear of it at their next barrier.
      if (!stepped.ok()) own.lockstep.give_up(stepped);
      if (stepped.ok()) stepped = own.lockstep.barrier("look", {});
      EXPECT_FALSE(stepped.ok());
      EXPECT_NE(stepped.message().find("no page today"), std::string::npos) << stepped.message();
      EXPECT_EQ(stepped.message().starts_with("rank 1: "), ranks.rank() != 1);
      own.early->drop();
      EXPECT_FALSE(own.early->begun());
      own.gathered->end_run();
      EXPECT_EQ(own.model.pages().open(), 0u);
    });
  }
}

}  // namespace
}  // namespace taco::zerocache
