// Steps of several ranks against the same steps over plain arrays: the same bits on all ranks, and
// state on one of them alone.
#include "zerocache/ranks/zero1/sharded_step.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "support/gathering_threads.h"
#include "support/paged_model.h"
#include "zerocache/mover/tensor_bytes.h"
#include "zerocache/steps/backward_steps.h"

namespace taco::zerocache {
namespace {

using testing::Floats;
using testing::GatheringThreads;
using testing::Halves;
using testing::PagedModel;
using testing::Plain;
using Model = testing::PlainModel;

constexpr std::size_t kPage = 4096;
constexpr StateKind kAdam[] = {StateKind::kExpAvg, StateKind::kExpAvgSq};

StepConstants adamw(int t) { return kernels::adam_step({.weight_decay = 0.1}, t); }

// One rank's pages of a model.
class Rank : public PagedModel {
 public:
  Rank(const Model& model, Collectives& ranks, unsigned threads = 1)
      : PagedModel(model, kPage, threads, kAdam),
        ranks_(ranks),
        shards_(Shards::deal(layout(), state_layout(), tensors(), ranks.rank(), ranks.size())) {}

  Status step(std::span<const Update> updates) {
    TACO_RETURN_IF_ERROR(agree_on_step(ranks_, layout(), updates, stream().check(updates)));
    return ShardedStep(ranks_, pages(), layout(), shards_, stream(), std::nullopt).run(updates);
  }

  // The same, by steps that are taken before all gradients are there.
  Status step_early(std::span<const Update> updates) {
    BackwardOptions options;
    options.own = [this](PageId page) { return shards_.owns(page); };
    auto steps = std::move(BackwardSteps::make(stream(), layout(), tensors(), options)).value();
    for (const Update& update : updates) {
      TACO_RETURN_IF_ERROR(steps->add(update));
      TACO_RETURN_IF_ERROR(steps->advance());
    }
    const std::vector<Update> added = steps->added();
    const Status own = steps->finish();
    done_ = steps->take_done();
    return share(added, own);
  }
  Status share(std::span<const Update> updates, const Status& own) {
    return ShardedStep(ranks_, pages(), layout(), shards_, stream(), std::nullopt)
        .share(updates, own);
  }
  // Tensors whose gradients step_early() has not needed to its end.
  const std::vector<std::uint32_t>& done() const { return done_; }

  void expect_parameters(Model& model) {
    for (std::size_t i = 0; i < model.size(); ++i) {
      Plain& plain = model[i];
      SCOPED_TRACE(plain.name);
      std::vector<std::byte> bytes(plain.size() * (plain.half ? 2 : 4));
      if (bytes.empty()) continue;
      pages().read(layout().tensors()[i], bytes.data());
      EXPECT_EQ(std::memcmp(bytes.data(), model.bytes_of(i), bytes.size()), 0);
    }
  }
  // Pages of state exist here exactly where they belong to this rank and something was stepped.
  void expect_state(Model& model) {
    std::size_t here = 0;
    for (std::size_t i = 0; i < model.size(); ++i) {
      if (model[i].size() == 0) continue;
      for (const char* kind : {"/exp_avg", "/exp_avg_sq"}) {
        const PlacedTensor& state = *layout().find(model[i].name + kind);
        const Floats& all = kind == std::string("/exp_avg") ? model[i].first : model[i].second;
        const Run run = layout().pages_of(state);
        for (PageId page = run.first; page < run.first + run.count; ++page) {
          EXPECT_EQ(pages().has_content(page), shards_.owns(page)) << state.name;
          if (!shards_.owns(page)) continue;
          ++here;
          const std::uint64_t begin = std::max(state.offset, std::uint64_t{page} * kPage);
          const std::uint64_t end =
              std::min(state.offset + state.bytes, std::uint64_t{page + 1} * kPage);
          Floats own((end - begin) / sizeof(float));
          EXPECT_TRUE(read_bytes(pages(), kPage, state, Tier::kHost, begin - state.offset,
                                 std::as_writable_bytes(std::span(own)))
                          .ok());
          EXPECT_EQ(std::memcmp(own.data(), all.data() + (begin - state.offset) / sizeof(float),
                                end - begin),
                    0)
              << state.name;
        }
      }
    }
    EXPECT_GT(here, 0u);
  }

 private:
  Collectives& ranks_;
  Shards shards_;
  std::vector<std::uint32_t> done_;
};

TEST(ShardedStep, AllRanksHaveWhatOneAloneWouldHave) {
  for (const int ranks : {1, 2, 3, 5}) {
    SCOPED_TRACE("ranks: " + std::to_string(ranks));
    GatheringThreads group(ranks);
    group.run([&](Collectives& own) {
      Model model(17);
      Rank rank(model, own, 1 + static_cast<unsigned>(own.rank()) % 2);
      std::vector<int> steps(model.size());
      for (int round = 0; round < 4; ++round) {
        std::vector<Update> updates;
        for (std::uint32_t i = 0; i < model.size(); ++i) {
          if (round > 0 && (i + static_cast<std::uint32_t>(round)) % 4 == 0) continue;
          const StepConstants step = adamw(++steps[i]);
          updates.insert(updates.begin(), model.update(i, step));
          model[i].step(step);
        }
        const Status stepped = rank.step(updates);
        ASSERT_TRUE(stepped.ok()) << stepped.message();
        model.new_gradients();
        rank.expect_parameters(model);
      }
      rank.expect_state(model);
    });
  }
}

TEST(ShardedStep, PagesThatOwnersHaveSteppedEarlyTravelAfterwards) {
  for (const int ranks : {2, 4}) {
    SCOPED_TRACE("ranks: " + std::to_string(ranks));
    GatheringThreads group(ranks);
    group.run([&](Collectives& own) {
      Model model(17);
      Rank rank(model, own);
      std::vector<int> steps(model.size());
      for (int round = 0; round < 3; ++round) {
        std::vector<Update> updates;
        std::size_t filled = 0;
        for (std::uint32_t i = 0; i < model.size(); ++i) {
          if (round > 0 && (i + static_cast<std::uint32_t>(round)) % 4 == 0) continue;
          const StepConstants step = adamw(++steps[i]);
          updates.insert(updates.begin(), model.update(i, step));
          model[i].step(step);
          filled += model[i].size() > 0;
        }
        const Status stepped = rank.step_early(updates);
        ASSERT_TRUE(stepped.ok()) << stepped.message();
        EXPECT_EQ(rank.done().size(), filled);
        model.new_gradients();
        rank.expect_parameters(model);
      }
      rank.expect_state(model);
    });
  }
}

TEST(ShardedStep, WhatHasFailedOnOneRankBeforeTheyTravelFailsOnAll) {
  GatheringThreads group(3);
  group.run([&](Collectives& own) {
    Model model(4);
    Rank rank(model, own);
    const Update update = model.update(0, adamw(1));
    const Status failed = own.rank() == 1 ? Status(Code::kResource, "no disk") : Status();
    const Status shared = rank.share({&update, 1}, failed);
    EXPECT_EQ(shared.code(), Code::kResource);
    EXPECT_EQ(shared.message(), own.rank() == 1 ? "no disk" : "rank 1: no disk");
  });
}

// Bytes between them, on the same pages, are not those of the owner.
TEST(ShardedStep, OnlyWhatIsSteppedIsTakenFromOthers) {
  GatheringThreads group(2);
  group.run([&](Collectives& own) {
    Model model(4);
    Rank rank(model, own);
    std::vector<Update> updates;
    for (std::uint32_t i = 0; i < model.size(); ++i) {
      if (i % 2 == 0) {
        model[i].step(adamw(1));
        updates.push_back(model.update(i, adamw(1)));
        continue;
      }
      // Values of this rank alone.
      for (float& value : model[i].values) value = static_cast<float>(own.rank());
      for (std::uint16_t& half : model[i].halves) half = static_cast<std::uint16_t>(own.rank());
      rank.pages().write(rank.layout().tensors()[i], model.bytes_of(i));
    }
    // The gradients, and so the steps, are as before.
    ASSERT_TRUE(rank.step(updates).ok());
    rank.expect_parameters(model);
  });
}

TEST(ShardedStep, AStepOfNothingIsOne) {
  GatheringThreads group(2);
  group.run([&](Collectives& own) {
    Model model(1);
    Rank rank(model, own);
    EXPECT_TRUE(rank.step({}).ok());
    rank.expect_parameters(model);
  });
}

TEST(ShardedStep, AParameterWithAGradientOnSomeRanksOnlyIsNamedOnAll) {
  GatheringThreads group(3);
  group.run([&](Collectives& own) {
    Model model(2);
    Rank rank(model, own);
    std::vector<Update> updates = {model.update(0, adamw(1)), model.update(3, adamw(1))};
    if (own.rank() == 2) updates.pop_back();
    Status stepped = rank.step(updates);
    EXPECT_EQ(stepped.code(), Code::kMismatch);
    EXPECT_NE(stepped.message().find("'p3' has a gradient on rank 0 and none on rank 2"),
              std::string::npos)
        << stepped.message();
    if (own.rank() == 1) updates.push_back(model.update(6, adamw(1)));
    if (own.rank() == 2) updates.push_back(model.update(3, adamw(1)));
    stepped = rank.step(updates);
    EXPECT_NE(stepped.message().find("'p6' has a gradient on rank 1 and none on rank 0"),
              std::string::npos)
        << stepped.message();
    rank.expect_parameters(model);
  });
}

TEST(ShardedStep, StepsThatDifferAreRefusedOnAll) {
  const auto refuses = [](const StepConstants& first, const StepConstants& second) {
    GatheringThreads group(2);
    group.run([&](Collectives& own) {
      Model model(2);
      Rank rank(model, own);
      const Update update = model.update(3, own.rank() == 0 ? first : second);
      const Status stepped = rank.step({&update, 1});
      EXPECT_EQ(stepped.code(), Code::kMismatch);
      EXPECT_NE(stepped.message().find("'p3' would be stepped otherwise on rank 0 than on rank 1"),
                std::string::npos)
          << stepped.message();
      rank.expect_parameters(model);
    });
  };
  refuses(adamw(1), adamw(2));
  refuses(adamw(1), kernels::adam_step({.lr = 2e-3, .weight_decay = 0.1}, 1));
}

TEST(ShardedStep, WhatOneRankRefusesIsRefusedByAllBeforeAnythingChanges) {
  GatheringThreads group(2);
  group.run([&](Collectives& own) {
    Model model(2);
    Rank rank(model, own);
    std::vector<Update> updates = {model.update(0, adamw(1))};
    if (own.rank() == 1) updates.front().gradient = nullptr;
    const Status stepped = rank.step(updates);
    EXPECT_EQ(stepped.code(), Code::kInvalidArgument);
    EXPECT_NE(stepped.message().find("'p0' is to be stepped without a gradient"),
              std::string::npos);
    EXPECT_EQ(stepped.message().starts_with("rank 1: "), own.rank() == 0);
    rank.expect_parameters(model);
  });
}

// Whichever use it is that has no page.
TEST(ShardedStep, ARankWithoutAPageIsAFailureOfAll) {
  for (std::size_t use = 0; use < 12; ++use) {
    GatheringThreads group(3);
    group.run([&](Collectives& own) {
      Model model(6);
      Rank rank(model, own);
      std::vector<Update> updates;
      for (std::uint32_t i = 0; i < model.size(); ++i) updates.push_back(model.update(i, adamw(1)));
      if (own.rank() == 1) rank.pages().fail_at(use);
      const Status stepped = rank.step(updates);
      EXPECT_EQ(stepped.code(), Code::kResource);
      EXPECT_NE(stepped.message().find("no page today"), std::string::npos);
      EXPECT_EQ(stepped.message().starts_with("rank 1: "), own.rank() != 1);
      EXPECT_EQ(rank.pages().open(), 0u);
    });
  }
}

}  // namespace
}  // namespace taco::zerocache
