#include "zerocache/pages/state_layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace taco::zerocache {
namespace {

constexpr std::size_t kPage = 4096;
constexpr StateKind kAdam[] = {StateKind::kExpAvg, StateKind::kExpAvgSq};

std::vector<std::uint32_t> all_of(const Layout& layout) {
  std::vector<std::uint32_t> all(layout.tensors().size());
  std::iota(all.begin(), all.end(), 0);
  return all;
}

// That element i of a page of parameters is element i of its pages of state: found by going from
// every tensor of state to its parameter, and by no formula of the code's.
void check(const Layout& layout, const StateLayout& state,
           const std::vector<std::uint32_t>& parameters) {
  std::set<PageId> pages_of_state;
  for (const std::uint32_t index : parameters) {
    const PlacedTensor& parameter = layout.tensors()[index];
    const std::size_t elements = parameter.bytes / parameter.element_bytes;
    for (const StateKind kind : state.kinds()) {
      const PlacedTensor* const own = layout.find(state_name(parameter.name, kind));
      if (elements == 0 || (kind == StateKind::kMaster && parameter.element_bytes == 4)) {
        EXPECT_EQ(own, nullptr);
        continue;
      }
      ASSERT_NE(own, nullptr) << parameter.name;
      EXPECT_EQ(own->bytes, 4 * elements);
      EXPECT_EQ(own->element_bytes, 4u);
      for (const std::size_t i : {std::size_t{0}, elements / 2, elements - 1}) {
        const std::uint64_t at = parameter.offset + i * parameter.element_bytes;
        const auto page = static_cast<PageId>(at / kPage);
        const std::size_t element = at % kPage / parameter.element_bytes;
        const auto part = static_cast<std::uint32_t>(4 * element / kPage);
        ASSERT_TRUE(state.covers(page));
        const PageId of_state = state.page_of(page, part, kind);
        EXPECT_TRUE(state.is_state(of_state));
        EXPECT_FALSE(state.covers(of_state));
        EXPECT_EQ(own->offset + 4 * i, std::uint64_t{of_state} * kPage + 4 * element % kPage);
        pages_of_state.insert(of_state);
      }
    }
  }
  for (PageId page = 0; page < layout.pages(); ++page) {
    if (state.is_state(page)) continue;
    for (const std::uint32_t index : layout.tensors_on(page)) {
      EXPECT_EQ(layout.tensors()[index].name.find('/'), std::string::npos);
    }
  }
}

TEST(StateLayout, IsToldFromParametersByTheKindsThatThereAre) {
  for (const StateKind kind :
       {StateKind::kExpAvg, StateKind::kExpAvgSq, StateKind::kMomentumBuffer, StateKind::kMaster}) {
    EXPECT_EQ(parameter_of_state(state_name("h/0.weight", kind)), "h/0.weight");
  }
  EXPECT_EQ(parameter_of_state(state_name("w", "row_var")), "w");
  for (const char* const name : {"w", "w/", "w/b", "w/exp_avg_", "exp_avg", "w/exp_avg/b"}) {
    EXPECT_EQ(parameter_of_state(name), std::nullopt) << name;
  }
}

TEST(StateLayout, MirrorsPagesOfParametersElementByElement) {
  for (std::uint32_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    std::vector<TensorSpec> tensors;
    for (std::uint32_t i = 0, count = 1 + random() % 60; i < count; ++i) {
      const std::uint32_t element = random() % 3 == 0 ? 2 : 4;
      const std::size_t elements = (random() & 0x3FFF) >> (random() % 14);
      tensors.push_back({"t" + std::to_string(i), elements * element, element});
    }
    Layout layout = std::move(Layout::make(tensors, kPage)).value();
    std::vector<std::uint32_t> parameters = all_of(layout);
    std::shuffle(parameters.begin(), parameters.end(), random);
    parameters.resize(1 + random() % parameters.size());
    auto state = StateLayout::append_to(layout, parameters, kAdam);
    ASSERT_TRUE(state.ok()) << state.status().message();
    check(layout, state.value(), parameters);
  }
}

TEST(StateLayout, BfloatHasAMasterCopyAndTwiceThePages) {
  Layout layout =
      std::move(Layout::make({{"half", 3 * kPage, 2}, {"whole", kPage, 4}}, kPage)).value();
  const auto state = StateLayout::append_to(layout, all_of(layout), kAdam);
  ASSERT_TRUE(state.ok());
  EXPECT_TRUE(state.value().has(StateKind::kMaster));
  const PageId half = layout.pages_of(*layout.find("half")).first;
  const PageId whole = layout.pages_of(*layout.find("whole")).first;
  EXPECT_EQ(state.value().page_of(half, 1, StateKind::kMaster),
            state.value().page_of(half, 0, StateKind::kMaster) + 1);
  EXPECT_EQ(state.value().page_of(whole, 0, StateKind::kMaster), kNoPage);
  EXPECT_EQ(state.value().page_of(whole, 0, StateKind::kMomentumBuffer), kNoPage);
  EXPECT_EQ(layout.find("half/exp_avg")->bytes, 6 * kPage);
  EXPECT_EQ(layout.find("whole/master"), nullptr);
}

TEST(StateLayout, WhatIsNotGivenHasNone) {
  Layout layout =
      std::move(Layout::make({{"frozen", 2 * kPage, 4}, {"stepped", kPage, 4}}, kPage)).value();
  const std::uint32_t stepped[] = {1};
  const auto state = StateLayout::append_to(layout, stepped, kAdam);
  ASSERT_TRUE(state.ok());
  EXPECT_FALSE(state.value().covers(0));
  EXPECT_TRUE(state.value().covers(2));
  EXPECT_EQ(layout.find("frozen/exp_avg"), nullptr);
  std::size_t pages = 0;
  for (const auto& run : state.value().pages()) pages += run.count;
  EXPECT_EQ(pages, 2u);
}

TEST(StateLayout, ParametersOfOtherElementsAreRefusedByName) {
  Layout layout = std::move(Layout::make({{"good", 64, 4}, {"double", 64, 8}}, kPage)).value();
  const auto state = StateLayout::append_to(layout, all_of(layout), kAdam);
  ASSERT_FALSE(state.ok());
  EXPECT_EQ(state.status().message(),
            "parameter 'double' has elements of 8 bytes: only float32 and bfloat16 parameters "
            "have a state here");
  EXPECT_EQ(layout.tensors().size(), 2u);
}

}  // namespace
}  // namespace taco::zerocache
