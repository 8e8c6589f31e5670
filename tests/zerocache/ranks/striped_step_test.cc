// Training of a model that is spread over ranks, over pages that really move, against the same
// training over plain arrays: the same bits of parameters and state, each on one rank alone.
#include "zerocache/ranks/zero3/striped_step.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "device/host_device.h"
#include "support/gathering_threads.h"
#include "support/plain_model.h"
#include "support/rank_gradients.h"
#include "support/temporary_directory.h"
#include "zerocache/checkpoint/checkpoint.h"
#include "zerocache/disk/disk_format.h"
#include "zerocache/mover/mover.h"
#include "zerocache/mover/tensor_bytes.h"
#include "zerocache/ranks/own_bytes.h"
#include "zerocache/ranks/shards.h"
#include "zerocache/ranks/zero3/backward_stripes.h"
#include "zerocache/ranks/zero3/gathered_pages.h"

namespace taco::zerocache {
namespace {

using testing::Floats;
using testing::GatheringThreads;
using testing::mean_gradients;
using testing::Plain;
using testing::PlainModel;
using testing::RankGradients;
using testing::TemporaryDirectory;

constexpr StateKind kAdam[] = {StateKind::kExpAvg, StateKind::kExpAvgSq};
constexpr std::size_t kStripes = 3;  // held at most
constexpr std::uint32_t kNone = static_cast<std::uint32_t>(-1);

StepConstants adamw(int t) { return kernels::adam_step({.weight_decay = 0.1}, t); }

// Steps as one rank alone would, with the mean of all gradients.
void step_plain(PlainModel& model, int ranks, int pass) {
  std::vector<Floats> means = mean_gradients(model, ranks, pass);
  for (std::size_t i = 0; i < model.size(); ++i) {
    model[i].gradient = std::move(means[i]);
    const bool half_gradient = std::exchange(model[i].half_gradient, false);
    model[i].step(adamw(pass + 1));
    model[i].half_gradient = half_gradient;
  }
}

class Rank {
 public:
  explicit Rank(Collectives& ranks, std::size_t page_bytes = 4096, std::uint32_t seed = 17)
      : ranks_(ranks),
        page_bytes_(page_bytes),
        model(seed),
        layout(std::move(Layout::make(model.specs(), page_bytes)).value()),
        tensors_(model.size()) {
    std::iota(tensors_.begin(), tensors_.end(), 0);
    state_ = std::move(StateLayout::append_to(layout, tensors_, kAdam)).value();
    stripes_ = std::make_unique<Stripes>(layout, tensors_, ranks.rank(), ranks.size());
    shards = Shards::striped(layout, state_, tensors_, *stripes_);
    open_mover();
    stream_ = std::move(OptimizerStream::make(*mover, layout, state_, {1, Tier::kDevice})).value();
    lockstep = std::make_unique<Lockstep>(ranks);
    gathered = std::make_unique<GatheredPages>(ranks, *lockstep, *mover, layout, *stripes_,
                                               GatherOptions{.max_stripes = kStripes});
    gradients = std::make_unique<GradientShards>(ranks, *lockstep, layout, *stripes_, tensors_);
    for (std::size_t i = 0; i < model.size(); ++i) {
      const PlacedTensor& tensor = layout.tensors()[i];
      const auto* const bytes = static_cast<const std::byte*>(model.bytes_of(i));
      EXPECT_TRUE(write_own_bytes(*mover, page_bytes, shards, tensor, Tier::kDevice, 0,
                                  {bytes, tensor.bytes})
                      .ok());
    }
  }

  // Uses every parameter page by page, as the model has it.
  Status forward() {
    mover->begin_run("train");
    TACO_RETURN_IF_ERROR(gathered->begin_run("train"));
    for (std::size_t i = 0; i < model.size(); ++i) {
      const PlacedTensor& tensor = layout.tensors()[i];
      const Run run = layout.pages_of(tensor);
      for (PageId page = run.first; page < run.first + run.count; ++page) {
        const OperatorKey key = (i << 20) + page;
        TACO_RETURN_IF_ERROR(gathered->begin(key, {&page, 1}));
        const Access access{.page = page};
        TACO_RETURN_IF_ERROR(mover->begin(key, {&access, 1}));
        expect_bytes(i, page);
        mover->end(key);
        gathered->end(key);
      }
    }
    return {};
  }
  Status backward(int pass) {
    const RankGradients own(model, ranks_.rank(), pass);
    for (auto at = tensors_.rbegin(); at != tensors_.rend(); ++at) {
      TACO_RETURN_IF_ERROR(gradients->add(own.final_gradient(*at)));
    }
    return gradients->finish();
  }
  Status step(int pass) {
    gathered->release();
    std::vector<StripedUpdate> updates;
    for (const std::uint32_t tensor : tensors_) updates.push_back({tensor, adamw(pass + 1)});
    return step(updates);
  }
  Status step(std::span<const StripedUpdate> updates) {
    StripedStep step(ranks_, *lockstep, layout, *stripes_, *stream_);
    TACO_RETURN_IF_ERROR(step.agree_on(updates, *gradients));
    return step.run(updates, *gradients);
  }
  // Instead of both: pages are stepped as soon as their means are there.
  Status backward_and_step(int pass, std::uint32_t left_out = kNone) {
    if (!early_) {
      const StripedStep step(ranks_, *lockstep, layout, *stripes_, *stream_);
      early_.emplace(step, layout, *stripes_, *stream_, *gradients, *gathered);
    }
    const RankGradients own(model, ranks_.rank(), pass);
    for (auto at = tensors_.rbegin(); at != tensors_.rend(); ++at) {
      if (*at == left_out) continue;
      TACO_RETURN_IF_ERROR(early_->add(own.final_gradient(*at), adamw(pass + 1)));
    }
    TACO_RETURN_IF_ERROR(early_->finish());
    if (left_out == kNone) return {};
    // A gradient of another pass, whose gradients join pages that have been stepped.
    TACO_RETURN_IF_ERROR(early_->add(own.final_gradient(left_out), adamw(pass + 1)));
    return early_->finish();
  }
  BackwardStripes& early() { return *early_; }
  Status train(int pass) {
    TACO_RETURN_IF_ERROR(forward());
    TACO_RETURN_IF_ERROR(backward(pass));
    TACO_RETURN_IF_ERROR(step(pass));
    gradients->clear();
    step_plain(model, ranks_.size(), pass);
    return {};
  }
  // Checks that the pages which this rank owns, of parameters and of state, are as in the model.
  void expect_own_state() {
    std::size_t here = 0;
    for (std::size_t i = 0; i < model.size(); ++i) {
      for (const char* kind : {"/exp_avg", "/exp_avg_sq"}) {
        const PlacedTensor* const state = layout.find(model[i].name + kind);
        if (state == nullptr || state->bytes == 0) continue;
        const Floats& all = kind == std::string("/exp_avg") ? model[i].first : model[i].second;
        const Run run = layout.pages_of(*state);
        for (PageId page = run.first; page < run.first + run.count; ++page) {
          EXPECT_EQ(mover->has_content(page), shards.owns(page)) << state->name;
          if (!shards.owns(page)) continue;
          ++here;
          const auto [begin, end] = bounds(*state, page);
          Floats own((end - begin) / sizeof(float));
          EXPECT_TRUE(read_bytes(*mover, page_bytes_, *state, Tier::kHost, begin - state->offset,
                                 std::as_writable_bytes(std::span(own)))
                          .ok());
          EXPECT_EQ(std::memcmp(own.data(), all.data() + (begin - state->offset) / sizeof(float),
                                end - begin),
                    0)
              << state->name << " on page " << page;
        }
      }
    }
    EXPECT_GT(here, 0u);
    for (PageId page = 0; page < layout.pages(); ++page) {
      EXPECT_FALSE(mover->has_content(page) && !shards.owns(page)) << page;
    }
  }

  Result<std::uint64_t> save(const std::string& directory) {
    TACO_RETURN_IF_ERROR(lockstep->barrier("save", {}));
    CheckpointSource source;
    source.layout = &layout;
    source.store = 5;
    source.holds = [this](PageId page) { return shards.owns(page) && mover->has_content(page); };
    source.read_page = [this](PageId page, std::span<std::byte> to) -> Status {
      const Access access{.page = page, .tier = Tier::kHost};
      TACO_RETURN_IF_ERROR(mover->begin(page, {&access, 1}));
      std::memcpy(to.data(), mover->address(page, Tier::kHost), to.size());
      mover->end(page);
      return {};
    };
    source.ranks = &ranks_;
    return save_checkpoint(FileSystem::real(), directory, source);
  }
  Status load(const std::string& directory) {
    const auto opened = Checkpoint::open(FileSystem::real(), directory);
    if (!opened.ok()) return opened.status();
    gathered->release();
    return opened.value().load(layout, [this](const Checkpoint::Piece& piece) {
      return write_own_bytes(*mover, page_bytes_, shards, piece.tensor, Tier::kHost, piece.offset,
                             piece.bytes);
    });
  }

 private:
  void open_mover() {
    const auto device_pages =
        static_cast<std::uint32_t>(kStripes + 1) * static_cast<std::uint32_t>(ranks_.size());
    MoverOptions options;
    options.max_pages = layout.pages();
    options.capacities = {device_pages, 6, 0};
    options.poison = true;
    device::HostOptions host;
    host.memory.frame_bytes = page_bytes_;
    host.memory.max_frames = device_pages;
    host.memory.poison = true;
    options.device = std::move(device::make_host_device(host)).value();
    options.range = std::move(options.device->reserve(layout.bytes())).value();
    options.disk = {{directory_.path(), page_place(layout.pages(), page_bytes_)}};
    auto opened = Mover::open(FileSystem::real(), options, layout);
    EXPECT_TRUE(opened.ok()) << opened.status().message();
    mover = std::move(opened).value();
  }
  std::pair<std::uint64_t, std::uint64_t> bounds(const PlacedTensor& tensor, PageId page) const {
    const std::uint64_t start = std::uint64_t{page} * page_bytes_;
    return {std::max(tensor.offset, start),
            std::min(tensor.offset + tensor.bytes, start + page_bytes_)};
  }
  void expect_bytes(std::size_t i, PageId page) {
    const PlacedTensor& tensor = layout.tensors()[i];
    const auto [begin, end] = bounds(tensor, page);
    const auto* const plain = static_cast<const std::byte*>(model.bytes_of(i));
    EXPECT_EQ(std::memcmp(mover->address(page, Tier::kDevice) + begin % page_bytes_,
                          plain + (begin - tensor.offset), end - begin),
              0)
        << tensor.name << " on page " << page;
  }

  Collectives& ranks_;
  const std::size_t page_bytes_;
  const TemporaryDirectory directory_;

 public:
  PlainModel model;
  Layout layout;
  Shards shards;

 private:
  std::vector<std::uint32_t> tensors_;
  StateLayout state_;
  std::unique_ptr<Stripes> stripes_;

 public:
  std::unique_ptr<Mover> mover;

 private:
  std::unique_ptr<OptimizerStream> stream_;

 public:
  std::unique_ptr<Lockstep> lockstep;
  std::unique_ptr<GatheredPages> gathered;
  std::unique_ptr<GradientShards> gradients;

 private:
  std::optional<BackwardStripes> early_;
};

TEST(StripedStep, ModelsThatAreSpreadOverRanksLearnWhatOneAloneWould) {
  for (const int size : {1, 2, 3}) {
    SCOPED_TRACE("ranks: " + std::to_string(size));
    GatheringThreads group(size);
    group.run([&](Collectives& ranks) {
      Rank own(ranks);
      for (int pass = 0; pass < 3; ++pass) {
        const Status trained = own.train(pass);
        ASSERT_TRUE(trained.ok()) << trained.message();
      }
      ASSERT_TRUE(own.forward().ok());
      own.gathered->end_run();
      own.expect_own_state();
      EXPECT_GT(own.gathered->stats().ahead, own.gathered->stats().gathered / 2);
    });
  }
}

TEST(BackwardStripes, StepsToTheSameBitsWhileGradientsBecomeFinal) {
  for (const int size : {1, 2, 3}) {
    for (const std::uint32_t left_out : {kNone, std::uint32_t{4}}) {
      SCOPED_TRACE("ranks: " + std::to_string(size));
      GatheringThreads group(size);
      group.run([&](Collectives& ranks) {
        Rank own(ranks);
        for (int pass = 0; pass < 3; ++pass) {
          ASSERT_TRUE(own.forward().ok());
          const Status stepped = own.backward_and_step(pass, left_out);
          ASSERT_TRUE(stepped.ok()) << stepped.message();
          EXPECT_EQ(own.early().stepped().size(), own.model.size());
          for (PageId page = 0; page < own.layout.pages(); ++page) {
            EXPECT_TRUE(own.gradients->on(page).empty()) << "a mean is kept";
          }
          own.early().forget();
          step_plain(own.model, size, pass);
        }
        ASSERT_TRUE(own.forward().ok());
        own.gathered->end_run();
        own.expect_own_state();
      });
    }
  }
}

TEST(BackwardStripes, WhatCannotBeSteppedIsRefusedByName) {
  GatheringThreads group(2);
  group.run([&](Collectives& ranks) {
    Rank own(ranks);
    ASSERT_TRUE(own.forward().ok());
    ASSERT_TRUE(own.backward_and_step(0).ok());
    const RankGradients gradients(own.model, ranks.rank(), 0);
    Status status = own.early().add(gradients.final_gradient(2), adamw(1));
    EXPECT_EQ(status.message(), "parameter 'p2' has two gradients in one step");
    own.early().forget();
    const kernels::SgdStep momentum{.momentum = 0.5F};
    status = own.early().add(gradients.final_gradient(2), momentum);
    EXPECT_NE(status.message().find("'p2' has no state"), std::string::npos) << status.message();
    EXPECT_FALSE(own.early().begun());
  });
}

TEST(BackwardStripes, RanksThatWouldStepOtherwiseAllHearOfItAndKnowThatItHasBegun) {
  GatheringThreads group(2);
  group.run([&](Collectives& ranks) {
    Rank own(ranks);
    ASSERT_TRUE(own.forward().ok());
    ASSERT_TRUE(own.backward_and_step(0).ok());
    own.early().forget();
    EXPECT_FALSE(own.early().begun());
    const RankGradients gradients(own.model, ranks.rank(), 1);
    Status status;
    for (std::uint32_t i = 0; status.ok() && i < own.model.size(); ++i) {
      const bool other = i + 1 == own.model.size() && ranks.rank() == 1;
      status = own.early().add(gradients.final_gradient(i), adamw(other ? 3 : 2));
    }
    if (status.ok()) status = own.early().finish();
    EXPECT_EQ(status.code(), Code::kMismatch);
    EXPECT_NE(status.message().find("for steps with the constants"), std::string::npos)
        << status.message();
    EXPECT_TRUE(own.early().begun());
    EXPECT_TRUE(own.early().stepped().empty());
    own.early().drop();
    EXPECT_FALSE(own.early().begun());
  });
}

TEST(StripedStep, ACheckpointOfSomeRanksIsReadByAnyNumberOfThem) {
  const TemporaryDirectory directory;
  GatheringThreads savers(3);
  savers.run([&](Collectives& ranks) {
    Rank own(ranks);
    for (int pass = 0; pass < 2; ++pass) ASSERT_TRUE(own.train(pass).ok());
    const auto saved = own.save(directory.path());
    ASSERT_TRUE(saved.ok()) << saved.status().message();
  });
  for (const int size : {1, 2, 4}) {
    SCOPED_TRACE("ranks: " + std::to_string(size));
    GatheringThreads group(size);
    group.run([&](Collectives& ranks) {
      // Other values at first, and other pages.
      Rank own(ranks, 8192, 18 - 1);
      ASSERT_TRUE(own.train(7).ok());
      own.model = PlainModel(17);
      for (int pass = 0; pass < 2; ++pass) step_plain(own.model, 3, pass);
      const Status loaded = own.load(directory.path());
      ASSERT_TRUE(loaded.ok()) << loaded.message();
      own.expect_own_state();
      const Status used = own.forward();
      ASSERT_TRUE(used.ok()) << used.message();
    });
  }
}

TEST(StripedStep, RanksThatWouldStepOtherwiseChangeNothing) {
  GatheringThreads group(2);
  group.run([&](Collectives& ranks) {
    Rank own(ranks);
    ASSERT_TRUE(own.forward().ok());
    ASSERT_TRUE(own.backward(0).ok());
    own.gathered->release();
    std::vector<StripedUpdate> updates = {{0, adamw(1)}, {3, adamw(ranks.rank() + 1)}};
    Status status = own.step(updates);
    EXPECT_EQ(status.code(), Code::kMismatch);
    EXPECT_NE(status.message().find("'p3' would be stepped otherwise on rank 0 than on rank 1"),
              std::string::npos)
        << status.message();
    updates = {{0, adamw(1)}};
    if (ranks.rank() == 1) updates.push_back({4, adamw(1)});
    status = own.step(updates);
    EXPECT_NE(status.message().find("'p4'"), std::string::npos) << status.message();
    // Ranks that do something else.
    status = ranks.rank() == 0 ? own.step(0) : own.lockstep->barrier("save", {});
    EXPECT_EQ(status.code(), Code::kMismatch);
    ASSERT_TRUE(own.forward().ok()) << "nothing has changed";
  });
}

TEST(StripedStep, WhatCannotBeSteppedIsRefusedByName) {
  GatheringThreads group(2);
  group.run([&](Collectives& ranks) {
    Rank own(ranks);
    ASSERT_TRUE(own.forward().ok());
    own.gathered->release();
    std::vector<StripedUpdate> updates = {{2, adamw(1)}};
    Status status = own.step(updates);
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_NE(status.message().find("'p2' is to be stepped without a gradient"), std::string::npos)
        << status.message();
    ASSERT_TRUE(own.backward(0).ok());
    updates = {{2, kernels::SgdStep{.momentum = 0.5F}}};
    status = own.step(updates);
    EXPECT_NE(status.message().find("'p2' has no state"), std::string::npos) << status.message();
    ASSERT_TRUE(own.forward().ok()) << "nothing has changed";
  });
}

}  // namespace
}  // namespace taco::zerocache
