// Steps with gradients on pages against the same steps with gradients in memory.
#include "zerocache/steps/gradient_pages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "support/paged_model.h"

namespace taco::zerocache {
namespace {

using testing::PagedModel;
using Model = testing::PlainModel;

constexpr std::size_t kPage = 4096;
constexpr StateKind kKinds[] = {StateKind::kExpAvg, StateKind::kExpAvgSq};

StepConstants adamw(int t) { return kernels::adam_step({.weight_decay = 0.1}, t, 0.25); }

class Paged : public PagedModel {
 public:
  explicit Paged(const Model& model) : PagedModel(model, kPage, 2, kKinds) { keep_gradients(); }

  // A gradient on pages has its parameter's type.
  Status keep(Model& model, std::uint32_t i) {
    const testing::Plain& plain = model[i];
    const auto bytes = plain.half ? std::as_bytes(std::span(plain.gradient_halves))
                                  : std::as_bytes(std::span(plain.gradient));
    return gradients().keep(pages(), layout(), i, bytes);
  }
  std::vector<std::byte> bytes(const PlacedTensor& tensor) {
    std::vector<std::byte> bytes(tensor.bytes);
    pages().read(tensor, bytes.data());
    return bytes;
  }
  std::size_t gradient_pages_held() {
    std::size_t held = 0;
    for (PageId page = 0; page < layout().pages(); ++page) {
      held += gradients().is_gradient(page) && pages().has_content(page);
    }
    return held;
  }
};

Update in_memory(Model& model, std::uint32_t i, int t) {
  const testing::Plain& plain = model[i];
  Update update = {i, plain.gradient.data(), plain.half, adamw(t)};
  if (plain.half) update.gradient = plain.gradient_halves.data();
  return update;
}

TEST(GradientPages, GiveTheBitsOfGradientsInMemory) {
  Model model(3);
  Paged kept(model), usual(model);
  for (int t = 1; t <= 3; ++t) {
    std::vector<Update> on_pages, all_in_memory;
    for (std::uint32_t i = 0; i < model.size(); ++i) {
      // Some have none this time, and some stay in memory, on the pages of others.
      if ((i + static_cast<std::uint32_t>(t)) % 5 == 0) continue;
      all_in_memory.push_back(in_memory(model, i, t));
      on_pages.push_back(all_in_memory.back());
      if ((i + static_cast<std::uint32_t>(t)) % 4 == 0) continue;
      ASSERT_TRUE(kept.keep(model, i).ok());
      on_pages.back().gradient = nullptr;
    }
    EXPECT_GT(kept.gradient_pages_held(), 10u);
    EXPECT_LE(kept.gradient_pages_held(), kept.gradients().count());
    ASSERT_TRUE(kept.stream().step(on_pages).ok());
    ASSERT_TRUE(usual.stream().step(all_in_memory).ok());
    ASSERT_TRUE(kept.gradients().drop(kept.pages()).ok());
    EXPECT_EQ(kept.gradient_pages_held(), 0u);
    for (const PlacedTensor& tensor : kept.layout().tensors()) {
      if (tensor.bytes == 0 || !usual.pages().has_content(usual.layout().pages_of(tensor).first))
        continue;
      EXPECT_TRUE(kept.bytes(tensor) == usual.bytes(tensor)) << tensor.name;
    }
    model.new_gradients();
  }
}

TEST(GradientPages, AreGivenUpAsSoonAsTheyHaveBeenRead) {
  Model model(4);
  Paged paged(model);
  std::vector<Update> updates;
  for (std::uint32_t i = 0; i < model.size(); ++i) {
    if (model[i].half) continue;  // two chunks share a page, and the second may have nothing
    ASSERT_TRUE(paged.keep(model, i).ok());
    updates.push_back({i, nullptr, false, adamw(1)});
  }
  EXPECT_GT(paged.gradient_pages_held(), 0u);
  ASSERT_TRUE(paged.stream().step(updates).ok());
  EXPECT_EQ(paged.gradient_pages_held(), 0u);
}

TEST(GradientPages, WhatWasKeptCanBeReadAndIsReplacedByAnother) {
  Model model(5);
  Paged paged(model);
  for (std::uint32_t i = 0; i < model.size(); ++i) ASSERT_TRUE(paged.keep(model, i).ok());
  model.new_gradients();
  for (std::uint32_t i = 0; i < model.size(); i += 2) ASSERT_TRUE(paged.keep(model, i).ok());
  for (std::uint32_t i = 0; i < model.size(); i += 2) {
    const auto expected = model[i].half ? std::as_bytes(std::span(model[i].gradient_halves))
                                        : std::as_bytes(std::span(model[i].gradient));
    std::vector<std::byte> found(expected.size());
    ASSERT_TRUE(paged.gradients().holds(i));
    ASSERT_TRUE(paged.gradients().read(paged.pages(), paged.layout(), i, found).ok());
    EXPECT_TRUE(std::equal(found.begin(), found.end(), expected.begin())) << model[i].name;
  }
}

TEST(GradientPages, NoTensorOfTheLayoutLiesOnThem) {
  Model model(6);
  Paged paged(model);
  std::size_t pages = 0;
  for (PageId page = 0; page < paged.layout().pages(); ++page) {
    if (!paged.gradients().is_gradient(page)) continue;
    ++pages;
    EXPECT_TRUE(paged.layout().tensors_on(page).empty());
    EXPECT_FALSE(paged.state_layout().is_state(page));
  }
  EXPECT_EQ(pages, paged.gradients().count());
  EXPECT_EQ(paged.gradients().page_of(paged.layout().pages() - 1), kNoPage);
}

TEST(GradientPages, AFailureNamesTheParameterAndLeavesItWithout) {
  Model model(7);
  Paged paged(model);
  ASSERT_TRUE(paged.keep(model, 3).ok());
  paged.pages().fail_at(0);
  const Status kept = paged.keep(model, 3);
  EXPECT_EQ(kept.message(), "the gradient of parameter 'p3': no page today");
  EXPECT_FALSE(paged.gradients().holds(3));
  const Update update{3, nullptr, false, adamw(1)};
  EXPECT_EQ(paged.stream().step({&update, 1}).message(),
            "parameter 'p3' is to be stepped without a gradient");
}

TEST(GradientPages, AGradientInMemoryBesideOneOnPagesIsRefused) {
  Model model(8);
  Paged paged(model);
  ASSERT_TRUE(paged.keep(model, 2).ok());
  const Update update = in_memory(model, 2, 1);
  EXPECT_EQ(paged.stream().check({&update, 1}).message(),
            "parameter 'p2' has a gradient in memory and another on pages");
}

}  // namespace
}  // namespace taco::zerocache
