// Steps that several ranks take while a backward pass goes on, whose pages travel meanwhile: the
// bits of steps at the end on all ranks, in as many calls of the group whatever a rank is late
// with.
#include "zerocache/ranks/zero1/backward_share.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "support/adafactor_model.h"
#include "support/gathering_threads.h"
#include "support/paged_model.h"
#include "zerocache/ranks/agreement.h"

namespace taco::zerocache {
namespace {

using testing::AdafactorModel;
using testing::Floats;
using testing::GatheringThreads;
using testing::PagedModel;
using Model = testing::PlainModel;

constexpr std::size_t kPage = 4096;
constexpr StateKind kAdam[] = {StateKind::kExpAvg, StateKind::kExpAvgSq};

StepConstants adamw(int t) { return kernels::adam_step({.weight_decay = 0.1}, t); }

// The calls of one rank in a pass and at its end, over pages of either kind of model.
template <typename Paged>
class Rank {
 public:
  Rank(Paged& model, Collectives& ranks)
      : model_(model),
        ranks_(ranks),
        shards_(Shards::deal(model.layout(), model.state_layout(), model.tensors(), ranks.rank(),
                             ranks.size())),
        step_(ranks, model.pages(), model.layout(), shards_, model.stream(), std::nullopt) {
    BackwardOptions options;
    options.own = [this](PageId page) { return shards_.owns(page); };
    steps_ =
        std::move(BackwardSteps::make(model.stream(), model.layout(), model.tensors(), options))
            .value();
    share_.emplace(ranks, step_, model.layout(), shards_, *steps_, model.tensors());
  }

  // Gradients come in groups, as of buckets. `own`: what keeps this rank from giving any.
  Status step(std::span<const Update> updates, std::size_t group, Status own = {}) {
    for (std::size_t from = 0; from < updates.size(); from += group) {
      std::vector<std::uint32_t> tensors;
      for (const Update& update : updates.subspan(from, std::min(group, updates.size() - from))) {
        tensors.push_back(update.tensor);
        if (own.ok()) own = steps_->add(update);
        if (own.ok() && advances) own = steps_->advance();
      }
      TACO_RETURN_IF_ERROR(share_->final(tensors));
    }
    const std::vector<Update> added = steps_->added();
    if (own.ok()) own = steps_->finish();
    const Status arrived = share_->wait();
    if (own.ok()) own = arrived;
    steps_->forget();
    early = 0;
    for (PageId page = 0; page < model_.layout().pages(); ++page) early += share_->sent(page);
    const Status status =
        step_.share(added, own, [this](PageId page) { return share_->sent(page); });
    share_->forget();
    return status;
  }

  bool advances = true;   // or steps nothing before it has to
  std::size_t early = 0;  // pages that travelled in the pass

 private:
  Paged& model_;
  Collectives& ranks_;
  const Shards shards_;
  ShardedStep step_;
  std::unique_ptr<BackwardSteps> steps_;
  std::optional<BackwardShare> share_;
};

void expect_parameters(PagedModel& paged, Model& model) {
  for (std::size_t i = 0; i < model.size(); ++i) {
    std::vector<std::byte> bytes(model[i].size() * (model[i].half ? 2 : 4));
    if (bytes.empty()) continue;
    paged.pages().read(paged.layout().tensors()[i], bytes.data());
    EXPECT_EQ(std::memcmp(bytes.data(), model.bytes_of(i), bytes.size()), 0) << model[i].name;
  }
}

TEST(BackwardShare, AllRanksHaveWhatOneAloneWouldHave) {
  for (const int size : {1, 2, 3, 5}) {
    for (const std::size_t group : {1, 3, 100}) {
      SCOPED_TRACE(std::to_string(size) + " ranks, " + std::to_string(group) + " at a time");
      GatheringThreads ranks(size);
      ranks.run([&](Collectives& own) {
        Model model(17);
        PagedModel paged(model, kPage, 1, kAdam);
        Rank rank(paged, own);
        rank.advances = own.rank() != 1;  // which is late
        std::vector<int> steps(model.size());
        std::size_t early = 0;
        for (int round = 0; round < 4; ++round) {
          std::vector<Update> updates;
          for (std::uint32_t i = 0; i < model.size(); ++i) {
            if (round > 1 && (i + static_cast<std::uint32_t>(round)) % 4 == 0) continue;
            const StepConstants step = adamw(++steps[i]);
            updates.insert(updates.begin(), model.update(i, step));
            model[i].step(step);
          }
          const Status stepped = rank.step(updates, group);
          ASSERT_TRUE(stepped.ok()) << stepped.message();
          early += rank.early;
          model.new_gradients();
          expect_parameters(paged, model);
        }
        if (group == 1) {
          EXPECT_GT(early, 0u);
        }
        // There is no later point at which they could begin.
        if (group == 100) {
          EXPECT_EQ(early, 0u);
        }
        EXPECT_EQ(paged.pages().open(), 0u);
      });
    }
  }
}

std::size_t calls_of(bool late) {
  GatheringThreads ranks(3);
  ranks.run([&](Collectives& own) {
    Model model(17);
    PagedModel paged(model, kPage, 1, kAdam);
    Rank rank(paged, own);
    rank.advances = !late;
    std::vector<Update> updates;
    for (std::uint32_t i = 0; i < model.size(); ++i) updates.push_back(model.update(i, adamw(1)));
    EXPECT_TRUE(rank.step(updates, 2).ok());
  });
  return ranks.calls();
}

TEST(BackwardShare, RoundsDoNotDependOnWhoIsLate) { EXPECT_EQ(calls_of(true), calls_of(false)); }

// Tensors that are looked at as a whole, on pages of which others have stepped some already.
TEST(BackwardShare, AdafactorHasTheBitsOfOneAlone) {
  AdafactorModel alone(1 << 20, 1, false);
  for (int t = 1; t <= 3; ++t) ASSERT_TRUE(alone.step({.weight_decay = 0.1}, t).ok());
  for (const int size : {1, 2, 3}) {
    SCOPED_TRACE("ranks: " + std::to_string(size));
    GatheringThreads ranks(size);
    ranks.run([&](Collectives& own) {
      AdafactorModel paged(kPage, 1, false);
      Rank rank(paged, own);
      rank.advances = own.rank() != 1;
      for (int t = 1; t <= 3; ++t) {
        const Status stepped = rank.step(paged.updates({.weight_decay = 0.1}, t), 1);
        ASSERT_TRUE(stepped.ok()) << stepped.message();
        EXPECT_GT(rank.early, 0u);
      }
      for (std::uint32_t i = 0; i < std::size(testing::kShapes); ++i) {
        EXPECT_TRUE(paged.read(i) == alone.read(i)) << "p" << i;
      }
    });
  }
}

TEST(BackwardShare, WhatFailsOnOneRankFailsOnAllAtTheEnd) {
  for (std::size_t use = 0; use < 40; use += 3) {
    SCOPED_TRACE("use " + std::to_string(use));
    GatheringThreads ranks(3);
    ranks.run([&](Collectives& own) {
      Model model(6);
      PagedModel paged(model, kPage, 1, kAdam);
      Rank rank(paged, own);
      std::vector<Update> updates;
      for (std::uint32_t i = 0; i < model.size(); ++i) updates.push_back(model.update(i, adamw(1)));
      if (own.rank() == 1) paged.pages().fail_at(use);
      const Status stepped = rank.step(updates, 1);
      EXPECT_EQ(stepped.code(), Code::kResource);
      EXPECT_NE(stepped.message().find("no page today"), std::string::npos) << stepped.message();
      EXPECT_EQ(stepped.message().starts_with("rank 1: "), own.rank() != 1);
      EXPECT_EQ(paged.pages().open(), 0u);
    });
  }
}

TEST(BackwardShare, ARankThatGivesNoGradientsTakesPartAndFailsAll) {
  GatheringThreads ranks(2);
  ranks.run([&](Collectives& own) {
    Model model(6);
    PagedModel paged(model, kPage, 1, kAdam);
    Rank rank(paged, own);
    std::vector<Update> updates;
    for (std::uint32_t i = 0; i < model.size(); ++i) updates.push_back(model.update(i, adamw(1)));
    const Status failed = own.rank() == 1 ? Status(Code::kResource, "no disk") : Status();
    const Status stepped = rank.step(updates, 1, failed);
    EXPECT_EQ(stepped.message(), own.rank() == 1 ? "no disk" : "rank 1: no disk");
  });
}

// A chunk that is in use ends first.
TEST(BackwardShare, PagesTravelWhereThereIsRoomForOneUseAtATime) {
  GatheringThreads ranks(2);
  ranks.run([&](Collectives& own) {
    Model model(6);
    PagedModel paged(model, kPage, 1, kAdam);
    Rank rank(paged, own);
    std::vector<Update> updates;
    for (std::uint32_t i = 0; i < model.size(); ++i) {
      updates.push_back(model.update(i, adamw(1)));
      model[i].step(adamw(1));
    }
    paged.pages().room_for(1);
    const Status stepped = rank.step(updates, 1);
    ASSERT_TRUE(stepped.ok()) << stepped.message();
    EXPECT_GT(rank.early, 0u);
    EXPECT_EQ(paged.pages().max_open(), 1u);
    EXPECT_GT(paged.pages().refused(), 0u);
    expect_parameters(paged, model);
  });
}

TEST(BackwardShare, AGroupThatFailsEndsItWithoutHarm) {
  for (std::size_t call = 0; call < 6; ++call) {
    GatheringThreads ranks(2);
    ranks.fail_at(call);
    ranks.run([&](Collectives& own) {
      Model model(6);
      PagedModel paged(model, kPage, 1, kAdam);
      Rank rank(paged, own);
      std::vector<Update> updates;
      for (std::uint32_t i = 0; i < model.size(); ++i) updates.push_back(model.update(i, adamw(1)));
      EXPECT_EQ(rank.step(updates, 1).code(), Code::kPeerLost);
    });
  }
}

}  // namespace
}  // namespace taco::zerocache
