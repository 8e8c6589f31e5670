#include "pg/execution/staging.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>

namespace taco::pg {
namespace {

struct NoRunner final : OperationRunner {
  void take_st(OperationState&, harp::Transport&) override {}
};

class StagingTest : public ::testing::Test {
 protected:
  OperationState& stage(Kind kind, std::vector<Piece> inputs, std::vector<Piece> outputs) {
    OperationSpec spec{.kind = kind};
    spec.inputs = std::move(inputs);
    spec.outputs = std::move(outputs);
    operation_ = std::make_shared<OperationState>(spec, runner_, std::weak_ptr<harp::Stack>());
    EXPECT_TRUE(stage_overlaps(*operation_, 1).ok());
    return *operation_;
  }
  Piece piece(std::size_t offset, std::size_t bytes) { return {memory_.data() + offset, bytes}; }

  NoRunner runner_;
  std::array<std::byte, 256> memory_{};
  std::shared_ptr<OperationState> operation_;
};

TEST_F(StagingTest, BuffersApartAreUsedWhereTheyLie) {
  const OperationState& operation = stage(Kind::kAllReduce, {piece(0, 64)}, {piece(64, 64)});
  EXPECT_FALSE(operation.in_place);
  EXPECT_EQ(operation.staged.memory, nullptr);
}

TEST_F(StagingTest, AnInputThatIsItsOwnPlaceInTheOutputStaysThere) {
  const std::vector<Piece> outputs = {piece(0, 64), piece(64, 64), piece(128, 64)};
  const OperationState& operation = stage(Kind::kAllGather, {piece(64, 64)}, outputs);
  EXPECT_TRUE(operation.in_place);
  EXPECT_EQ(operation.staged.memory, nullptr);
}

TEST_F(StagingTest, AnInputThatIsAnothersPlaceIsCopiedBeforeAnythingIsWritten) {
  memory_[0] = std::byte{7};
  const std::vector<Piece> outputs = {piece(0, 64), piece(64, 64), piece(128, 64)};
  const OperationState& operation = stage(Kind::kAllGather, {piece(0, 64)}, outputs);
  EXPECT_FALSE(operation.in_place);
  EXPECT_NE(operation.spec.inputs[0].data, memory_.data());
  EXPECT_EQ(operation.spec.inputs[0].data[0], std::byte{7});
  EXPECT_EQ(operation.spec.outputs[0].data, memory_.data());
}

TEST_F(StagingTest, OfOutputsThatShareMemoryTheLastOneWins) {
  const std::vector<Piece> outputs = {piece(0, 64), piece(0, 64), piece(32, 64)};
  OperationState& operation = stage(Kind::kAllGather, {piece(128, 64)}, outputs);
  for (std::size_t i = 0; i < 3; ++i) {
    const Piece& own = operation.spec.outputs[i];
    std::fill_n(own.data, own.bytes, static_cast<std::byte>(i + 1));
  }
  EXPECT_EQ(memory_[0], std::byte{0}) << "nothing is written before the end";
  unstage(operation);
  EXPECT_EQ(memory_[31], std::byte{2});
  EXPECT_EQ(memory_[32], std::byte{3});
}

}  // namespace
}  // namespace taco::pg
