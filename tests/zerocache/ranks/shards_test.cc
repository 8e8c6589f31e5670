#include "zerocache/ranks/shards.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace taco::zerocache {
namespace {

constexpr std::size_t kPage = 4096;
constexpr StateKind kAdam[] = {StateKind::kExpAvg, StateKind::kExpAvgSq};

struct Model {
  Layout layout = std::move(Layout::make({}, kPage)).value();
  std::vector<std::uint32_t> trained;
  StateLayout state;

  void add(std::size_t elements, std::uint32_t element_bytes, bool is_trained = true) {
    const std::string name = "p" + std::to_string(layout.tensors().size());
    const auto index = layout.append({name, elements * element_bytes, element_bytes});
    if (is_trained) trained.push_back(index.value());
  }
  void finish() { state = std::move(StateLayout::append_to(layout, trained, kAdam)).value(); }
  Shards deal(int rank, int ranks) const {
    return Shards::deal(layout, state, trained, rank, ranks);
  }
  // Bytes of state by rank.
  std::vector<std::size_t> shares(int ranks) const {
    const Shards shards = deal(0, ranks);
    std::vector<std::size_t> shares(static_cast<std::size_t>(ranks));
    for (const PlacedTensor& tensor : layout.tensors()) {
      if (tensor.name.find('/') == std::string::npos) continue;
      const Run run = layout.pages_of(tensor);
      for (PageId page = run.first; page < run.first + run.count; ++page) {
        const std::uint64_t start = std::uint64_t{page} * kPage;
        shares[static_cast<std::size_t>(shards.owner(page))] +=
            std::min(tensor.offset + tensor.bytes, start + kPage) - std::max(tensor.offset, start);
      }
    }
    return shares;
  }
};

TEST(Shards, OneRankOwnsEverything) {
  const Shards shards;
  EXPECT_EQ(shards.ranks(), 1);
  for (const PageId page : {0u, 1u, 1000u}) EXPECT_TRUE(shards.owns(page));
}

TEST(Shards, StateIsKeptByWhoeverStepsItsParameters) {
  Model model;
  for (const std::size_t elements : {100, 5000, 1, 3000, 20000}) {
    model.add(elements, 4);
    model.add(elements, 2);
    model.add(elements, 4, false);
  }
  model.finish();
  const Shards shards = model.deal(1, 3);
  EXPECT_EQ(shards.rank(), 1);
  int covered = 0;
  for (PageId page = 0; page < model.layout.pages(); ++page) {
    EXPECT_EQ(shards.owns(page), shards.owner(page) == 1);
    if (!model.state.covers(page)) continue;
    ++covered;
    for (const StateKind kind : model.state.kinds()) {
      for (std::uint32_t part = 0; part < 2; ++part) {
        if (part == 1 && model.state.page_of(page, 0, StateKind::kMaster) == kNoPage) continue;
        const PageId state = model.state.page_of(page, part, kind);
        if (state == kNoPage) continue;
        EXPECT_EQ(shards.owner(state), shards.owner(page));
      }
    }
  }
  EXPECT_GT(covered, 20);
}

TEST(Shards, AllRanksDealAlike) {
  Model model;
  for (int i = 0; i < 30; ++i) model.add(static_cast<std::size_t>(i) * 100 + 1, i % 2 ? 2 : 4);
  model.finish();
  const Shards first = model.deal(0, 4);
  for (int rank = 1; rank < 4; ++rank) {
    const Shards other = model.deal(rank, 4);
    for (PageId page = 0; page < model.layout.pages() + 10; ++page) {
      EXPECT_EQ(first.owner(page), other.owner(page));
      EXPECT_GE(first.owner(page), 0);
      EXPECT_LT(first.owner(page), 4);
    }
  }
}

// The most that one page of parameters has: of bfloat16, two parts with three kinds.
TEST(Shards, SharesDifferByTheStateOfOnePageAtMost) {
  std::mt19937 random(3);
  for (int round = 0; round < 30; ++round) {
    Model model;
    for (int i = 0; i < 40; ++i) {
      model.add(1 + random() % 8000, random() % 3 == 0 ? 2 : 4, random() % 4 != 0);
    }
    model.finish();
    for (const int ranks : {2, 3, 7}) {
      const std::vector<std::size_t> shares = model.shares(ranks);
      const auto [least, most] = std::minmax_element(shares.begin(), shares.end());
      EXPECT_LE(*most - *least, 8 * kPage) << "round " << round << ", ranks: " << ranks;
      EXPECT_GT(*least, 0u);
    }
  }
}

// Small trained tensors between large frozen ones, as adapters are.
TEST(Shards, WhatIsFrozenDoesNotCount) {
  Model model;
  for (int i = 0; i < 60; ++i) {
    model.add(1000, 4, i % 2 == 1 && i < 40);
    if (i % 2 == 1) model.add(5000, 4, false);
  }
  model.finish();
  const std::vector<std::size_t> shares = model.shares(4);
  const auto [least, most] = std::minmax_element(shares.begin(), shares.end());
  EXPECT_LE(*most - *least, 2 * kPage);
}

TEST(Stripes, EachRankOwnsOnePageOfEachWholeStripeAndTheStateThatMirrorsIt) {
  Model model;
  for (const std::size_t elements : {100, 5000, 1, 30000}) {
    model.add(elements, 4);
    model.add(elements, 2);
    model.add(elements, 4, false);
  }
  model.finish();
  std::vector<std::uint32_t> parameters;
  for (std::uint32_t i = 0; i < 12; ++i) parameters.push_back(i);
  for (const int ranks : {1, 3, 4}) {
    std::vector<std::size_t> pages(static_cast<std::size_t>(ranks));
    const Stripes stripes(model.layout, parameters, 0, ranks);
    const Shards shards = Shards::striped(model.layout, model.state, model.trained, stripes);
    for (PageId page = 0; page < model.layout.pages(); ++page) {
      const bool is_state = model.state.is_state(page);
      EXPECT_EQ(stripes.covers(page), !is_state && !model.layout.tensors_on(page).empty());
      EXPECT_EQ(shards.owns(page), shards.owner(page) == 0);
      if (!stripes.covers(page)) continue;
      EXPECT_EQ(shards.owner(page), stripes.owner(page));
      EXPECT_LT(stripes.stripe_of(page), stripes.count());
      EXPECT_EQ(stripes.page_of(stripes.stripe_of(page), stripes.owner(page)), page);
      ++pages[static_cast<std::size_t>(stripes.owner(page))];
      for (const StateKind kind : model.state.kinds()) {
        const PageId mirror = model.state.page_of(page, 0, kind);
        if (mirror == kNoPage) continue;
        EXPECT_EQ(shards.owner(mirror), stripes.owner(page));
      }
    }
    // A run of pages for each size of elements.
    const auto [least, most] = std::minmax_element(pages.begin(), pages.end());
    EXPECT_LE(*most - *least, 2u);
  }
}

TEST(Stripes, AreAboutAsLongHoweverManyRanksThereAre) {
  EXPECT_EQ(striped_page_bytes(1), kPageBytes);
  EXPECT_EQ(striped_page_bytes(2), kPageBytes / 2);
  EXPECT_EQ(striped_page_bytes(3), kPageBytes / 4);
  EXPECT_EQ(striped_page_bytes(64), kPageBytes / 64);
  EXPECT_EQ(striped_page_bytes(1000), kPageBytes / 64);
  EXPECT_TRUE(valid_page_bytes(striped_page_bytes(5)));
}

}  // namespace
}  // namespace taco::zerocache
