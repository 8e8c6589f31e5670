// Steps in the middle of a backward pass against the same steps at its end.
#include "zerocache/steps/backward_steps.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "support/paged_model.h"
#include "zerocache/mover/tensor_bytes.h"

namespace taco::zerocache {
namespace {

using testing::PagedModel;
using Model = testing::PlainModel;

constexpr std::size_t kPage = 4096;
constexpr StateKind kKinds[] = {StateKind::kExpAvg, StateKind::kExpAvgSq};

StepConstants adamw(int t) { return kernels::adam_step({.weight_decay = 0.1}, t); }

class Paged : public PagedModel {
 public:
  Paged(const Model& model, std::size_t at_once) : PagedModel(model, kPage, 2, kKinds) {
    const BackwardOptions options{.points = 1, .max_at_once = at_once};
    steps_ = std::move(BackwardSteps::make(stream(), layout(), tensors(), options)).value();
  }

  BackwardSteps& steps() { return *steps_; }
  // All bytes of a tensor of the layout.
  std::vector<std::byte> bytes(const std::string& name) {
    const PlacedTensor& tensor = *layout().find(name);
    std::vector<std::byte> bytes(tensor.bytes);
    pages().read(tensor, bytes.data());
    return bytes;
  }
  void expect_is(Paged& other) {
    for (const PlacedTensor& tensor : layout().tensors()) {
      if (!pages().has_content(layout().pages_of(tensor).first)) continue;
      EXPECT_TRUE(bytes(tensor.name) == other.bytes(tensor.name)) << tensor.name;
    }
  }

 private:
  std::unique_ptr<BackwardSteps> steps_;
};

std::vector<std::uint32_t> shuffled(const Model& model, std::uint32_t seed) {
  std::vector<std::uint32_t> order(model.size());
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937(seed));
  return order;
}

TEST(BackwardSteps, GiveTheBitsOfAStepWhateverIsFinalFirst) {
  for (const std::size_t at_once : {1, 2, 7}) {
    Model model(3);
    Paged whole(model, 1), early(model, at_once);
    for (int t = 1; t <= 4; ++t) {
      std::vector<Update> updates;
      for (const std::uint32_t i : shuffled(model, static_cast<std::uint32_t>(t))) {
        if ((i + static_cast<std::uint32_t>(t)) % 4 == 0) continue;
        updates.push_back(model.update(i, adamw(t)));
        ASSERT_TRUE(early.steps().add(updates.back()).ok());
        ASSERT_TRUE(early.steps().advance().ok());
      }
      EXPECT_TRUE(early.steps().begun());
      ASSERT_TRUE(early.steps().finish().ok());
      EXPECT_FALSE(early.steps().begun());
      EXPECT_EQ(early.pages().open(), 0u);
      ASSERT_TRUE(whole.stream().step(updates).ok());
      early.expect_is(whole);
      const std::vector<std::uint32_t> done = early.steps().take_done();
      const auto empty = std::count_if(updates.begin(), updates.end(), [&](const Update& update) {
        return model[update.tensor].size() == 0;
      });
      EXPECT_EQ(done.size() + static_cast<std::size_t>(empty), updates.size());
      model.new_gradients();
    }
    EXPECT_EQ(early.pages().max_open(), at_once);
  }
}

TEST(BackwardSteps, APageIsSteppedWhenAllThatLiesOnItIsFinal) {
  Model model(3);
  Paged paged(model, 1);
  const std::vector<std::byte> before = paged.bytes("p0");
  const PageId page = paged.layout().pages_of(paged.layout().tensors()[0]).first;
  const auto on_page = paged.layout().tensors_on(page);
  std::vector<std::uint32_t> there(on_page.begin(), on_page.end());
  ASSERT_GT(there.size(), 1u);
  const auto begun = [&] { return paged.pages().keys().size(); };
  for (const std::uint32_t i : there) {
    EXPECT_EQ(begun(), 0u);
    ASSERT_TRUE(paged.steps().add(model.update(i, adamw(1))).ok());
    if (i == there.back()) continue;
    ASSERT_TRUE(paged.steps().advance().ok());
  }
  EXPECT_EQ(begun(), 0u) << "add() moves nothing";
  ASSERT_TRUE(paged.steps().advance().ok());
  EXPECT_GT(begun(), 0u);
  paged.steps().wait_for_chunks();
  EXPECT_EQ(paged.pages().open(), 0u);
  EXPECT_NE(paged.bytes("p0"), before);
}

TEST(BackwardSteps, EveryRunHasTheSameUsesInTheSameOrder) {
  Model model(5);
  Paged paged(model, 2);
  std::vector<OperatorKey> first;
  for (int t = 1; t <= 3; ++t) {
    const std::size_t start = paged.pages().keys().size();
    for (std::uint32_t i = 0; i < model.size(); ++i) {
      ASSERT_TRUE(paged.steps().add(model.update(i, adamw(t))).ok());
      ASSERT_TRUE(paged.steps().advance().ok());
    }
    ASSERT_TRUE(paged.steps().finish().ok());
    const auto& keys = paged.pages().keys();
    const std::vector<OperatorKey> now(keys.begin() + static_cast<std::ptrdiff_t>(start),
                                       keys.end());
    if (t == 1) first = now;
    EXPECT_TRUE(now == first);
    EXPECT_EQ(now.size(), paged.steps().chunks());
  }
}

TEST(BackwardSteps, WhatIsDroppedIsSteppedWholeOrNotAtAll) {
  for (std::uint32_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Model model(seed);
    Paged paged(model, 2), expected(model, 1);
    std::vector<std::uint32_t> added;
    for (const std::uint32_t i : shuffled(model, seed)) {
      if (added.size() == model.size() / 2 + seed % 6) break;
      added.push_back(i);
      ASSERT_TRUE(paged.steps().add(model.update(i, adamw(1))).ok());
      ASSERT_TRUE(paged.steps().advance().ok());
    }
    auto whole = paged.steps().drop();
    ASSERT_TRUE(whole.ok()) << whole.status().message();
    EXPECT_LT(whole->size(), added.size());
    std::vector<Update> stepped;
    for (const std::uint32_t i : *whole) stepped.push_back(model.update(i, adamw(1)));
    ASSERT_TRUE(expected.stream().step(stepped).ok());
    paged.expect_is(expected);
    EXPECT_FALSE(paged.steps().begun());
    EXPECT_EQ(paged.pages().open(), 0u);
    ASSERT_TRUE(paged.steps().add(model.update(added[0], adamw(2))).ok());
    ASSERT_TRUE(paged.steps().finish().ok());
  }
}

TEST(BackwardSteps, ASecondGradientInAStepIsRefusedByName) {
  Model model(6);
  Paged paged(model, 1);
  ASSERT_TRUE(paged.steps().add(model.update(3, adamw(1))).ok());
  EXPECT_EQ(paged.steps().add(model.update(3, adamw(1))).message(),
            "parameter 'p3' has two gradients in one step");
  paged.steps().forget();
  EXPECT_TRUE(paged.steps().add(model.update(3, adamw(1))).ok());
}

TEST(BackwardSteps, WhereThereIsNoRoomNowAChunkWaitsForTheEnd) {
  Model model(7);
  Paged paged(model, 1), expected(model, 1);
  std::vector<Update> updates;
  for (std::uint32_t i = 0; i < model.size(); ++i) updates.push_back(model.update(i, adamw(1)));
  for (const Update& update : updates) {
    ASSERT_TRUE(paged.steps().add(update).ok());
    paged.pages().fail_at(0, Code::kInvalidArgument);
    ASSERT_TRUE(paged.steps().advance().ok());
  }
  EXPECT_TRUE(paged.pages().keys().empty());
  paged.pages().fail_at(3, Code::kInvalidArgument);
  const Status stepped = paged.steps().finish();
  EXPECT_EQ(stepped.code(), Code::kInvalidArgument) << "with nothing else in use it is an error";
  EXPECT_EQ(stepped.message().find("the optimizer's step ended before page "), 0u)
      << stepped.message();
  EXPECT_EQ(paged.pages().open(), 0u);
}

TEST(BackwardSteps, SoManyBeginAtOnceThatAllHaveTheirTurnInABackwardPass) {
  Model model(7);
  Paged paged(model, 1);
  const std::vector<std::uint32_t> all = shuffled(model, 1);
  const std::size_t chunks = paged.steps().chunks();
  const auto at_once = [&](const BackwardOptions& options) {
    return (*BackwardSteps::make(paged.stream(), paged.layout(), all, options))->at_once();
  };
  EXPECT_EQ(at_once({.points = chunks, .max_at_once = 100}), 1u);
  EXPECT_EQ(at_once({.points = chunks - 1, .max_at_once = 100}), 2u);
  EXPECT_EQ(at_once({.points = 10 * chunks, .max_at_once = 100}), 1u);
  EXPECT_EQ(at_once({.points = 1, .max_at_once = 3}), 3u);
}

TEST(BackwardSteps, APageThatCannotBeHadIsAnErrorAtOnce) {
  Model model(7);
  Paged paged(model, 2);
  for (std::uint32_t i = 0; i < model.size(); ++i) {
    ASSERT_TRUE(paged.steps().add(model.update(i, adamw(1))).ok());
  }
  paged.pages().fail_at(1);
  const Status advanced = paged.steps().advance();
  EXPECT_EQ(advanced.code(), Code::kResource);
  EXPECT_NE(advanced.message().find("no page today"), std::string::npos) << advanced.message();
  paged.steps().forget();
  EXPECT_EQ(paged.pages().open(), 0u);
}

TEST(Background, DoesOnePieceAfterTheOther) {
  auto background = std::move(Background::start("taco-test")).value();
  std::vector<int> order;
  for (int i = 0; i < 100; ++i) background->run([&order, i] { order.push_back(i); });
  background->wait();
  std::vector<int> expected(100);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_TRUE(order == expected);
  background->wait();
}

}  // namespace
}  // namespace taco::zerocache
