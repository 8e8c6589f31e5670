// A rank that says in its rounds what no rank of this library says, by accident or on purpose.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "pg/controller/controller_core.h"
#include "support/controller_ranks.h"

namespace taco::pg::controller {
namespace {

using testing::says;
using testing::Submitted;
using testing::sum_floats;

// Rank 0 has a controller. Rank 1 takes part in the rounds of the global set by hand.
class ControllerPeer : public ::testing::TestWithParam<std::int64_t> {
 protected:
  void SetUp() override {
    for (int rank = 0; rank < 2; ++rank) {
      const GroupOptions& group = ranks_.group(rank).options();
      nested_.push_back(std::make_shared<NestedGroups>(ranks_.network().stack(rank), group));
    }
    const std::uint64_t group = ranks_.group(0).options().id;
    auto made = Controller::start(nested_[0], {.rank = 0, .world = 2, .group = group});
    ASSERT_TRUE(made.ok()) << made.status().message();
    controller_ = std::move(made).value();
    auto rounds = nested_[1]->open(NestedGroups::id_of(family_of(group, 0), 0),
                                   nested_[1]->child_of(group), "/rounds");
    ASSERT_TRUE(rounds.ok()) << rounds.status().message();
    rounds_ = std::move(rounds).value();
  }
  void TearDown() override {
    controller_.reset();
    for (const auto& nested : nested_) (void)nested->close(kSecond);
  }

  Status run(OperationSpec spec) {
    const Result<OperationPtr> started = rounds_->start(std::move(spec));
    return started.ok() ? started.value()->wait(0) : started.status();
  }
  // A row of bits that says: I need words.
  void say_bits() {
    std::uint64_t bits = 0;
    const Piece piece{reinterpret_cast<std::byte*>(&bits), sizeof bits};
    EXPECT_TRUE(run({.kind = pg::Kind::kAllReduce,
                     .dtype = kernels::Dtype::kI64,
                     .op = kernels::ReduceOp::kBand,
                     .inputs = {piece},
                     .outputs = {piece}})
                    .ok());
  }
  void say_size(std::int64_t bytes) {
    std::int64_t sizes[2] = {0, bytes};
    OperationSpec spec{.kind = pg::Kind::kAllGather, .dtype = kernels::Dtype::kI64};
    for (std::int64_t& each : sizes) {
      spec.outputs.push_back({reinterpret_cast<std::byte*>(&each), sizeof each});
    }
    spec.inputs = {spec.outputs[1]};
    (void)run(std::move(spec));  // the other may have broken off before this rank is through
  }

  testing::RankThreads ranks_{{.world = 2}};
  std::vector<std::shared_ptr<NestedGroups>> nested_;
  std::unique_ptr<Controller> controller_;
  std::shared_ptr<Communicator> rounds_;
};
INSTANTIATE_TEST_SUITE_P(Sizes, ControllerPeer,
                         ::testing::Values(std::int64_t{1} << 42, INT64_MAX, std::int64_t{-8},
                                           std::int64_t{0}));

TEST_P(ControllerPeer, ThatTellsOfWordsThatCannotBeEndsTheControllerAndIsNamed) {
  const Submitted waiting = sum_floats(*controller_, "x", {1});
  say_bits();
  say_size(GetParam());
  EXPECT_TRUE(says(waiting.wait(), Code::kInternal,
                   {"allreduce 'x'", "rank 1", std::to_string(GetParam()) + " bytes"}));
}

}  // namespace
}  // namespace taco::pg::controller
