#include "zerocache/pages/layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace taco::zerocache {
namespace {

constexpr std::size_t kPage = 4096;
constexpr double kMaxWaste = 0.03;

std::vector<TensorSpec> named(const std::vector<std::size_t>& bytes) {
  std::vector<TensorSpec> tensors;
  for (const std::size_t each : bytes) {
    tensors.push_back({"t" + std::to_string(tensors.size()), each});
  }
  return tensors;
}

Layout made(const std::vector<TensorSpec>& tensors, std::size_t page_bytes) {
  auto layout = Layout::make(tensors, page_bytes);
  EXPECT_TRUE(layout.ok()) << layout.status().message();
  return std::move(layout).value();
}

// Checks what every layout owes, whatever the tensors are; a second opinion by going over all
// pages.
void check(const Layout& layout, const std::vector<TensorSpec>& tensors) {
  ASSERT_EQ(layout.tensors().size(), tensors.size());
  std::map<std::uint32_t, std::uint64_t> ends;  // by element size: tensors keep their order
  std::map<std::uint32_t, std::set<PageId>> pages_of_size;
  std::vector<std::vector<std::uint32_t>> on_page(layout.pages());
  for (std::uint32_t i = 0; i < tensors.size(); ++i) {
    const PlacedTensor& placed = layout.tensors()[i];
    EXPECT_EQ(placed.name, tensors[i].name);
    EXPECT_EQ(placed.bytes, tensors[i].bytes);
    EXPECT_EQ(placed.offset % kTensorAlignment, 0u);
    ASSERT_EQ(placed.element_bytes, tensors[i].element_bytes);
    std::uint64_t& end = ends[placed.element_bytes];
    ASSERT_GE(placed.offset, end) << placed.name << " overlaps the one before";
    end = placed.offset + placed.bytes;
    ASSERT_LE(end, layout.bytes());
    const Run pages = layout.pages_of(placed);
    if (placed.bytes == 0) {
      EXPECT_EQ(pages.count, 0u);
      continue;
    }
    EXPECT_EQ(pages.first, placed.offset / layout.page_bytes());
    EXPECT_EQ(pages.first + pages.count - 1, (end - 1) / layout.page_bytes());
    for (PageId page = pages.first; page < pages.first + pages.count; ++page) {
      on_page[page].push_back(i);
      pages_of_size[placed.element_bytes].insert(page);
    }
  }
  std::size_t touched = 0;
  for (const auto& [size, pages] : pages_of_size) touched += pages.size();
  for (PageId page = 0; page < layout.pages(); ++page) {
    const auto run = layout.tensors_on(page);
    const std::vector<std::uint32_t> found(run.begin(), run.end());
    ASSERT_EQ(found, on_page[page]) << "page " << page;
    const bool one_size = std::all_of(found.begin(), found.end(), [&](std::uint32_t index) {
      return tensors[index].element_bytes == tensors[found.front()].element_bytes;
    });
    ASSERT_TRUE(one_size) << "page " << page;
    if (ends.size() == 1) {
      EXPECT_FALSE(found.empty()) << "page " << page << " holds nothing";
    }
  }
  const bool many = std::all_of(pages_of_size.begin(), pages_of_size.end(),
                                [](const auto& of) { return of.second.size() >= 64; });
  std::uint64_t padded = 0;
  for (const TensorSpec& tensor : tensors) padded += (tensor.bytes + 63) / 64 * 64;
  if (touched > 0) {
    const double waste =
        1 - static_cast<double>(padded) / static_cast<double>(touched * layout.page_bytes());
    EXPECT_NEAR(layout.waste(), waste, 1e-12);
  }
  if (many) {
    EXPECT_LT(layout.waste(), kMaxWaste);
  }
}

TEST(Layout, SmallTensorsShareAPage) {
  const Layout layout = made(named({100, 4, 0, 64, 1000}), kPage);
  EXPECT_EQ(layout.pages(), 1u);
  EXPECT_EQ(layout.tensors()[1].offset, 128u);
  EXPECT_EQ(layout.tensors_on(0).size(), 4u);
  EXPECT_EQ(layout.describe(0), "page 0 (t0, t1 and 2 more)");
  EXPECT_EQ(layout.tensor_at(99), &layout.tensors()[0]);
  EXPECT_EQ(layout.tensor_at(100), nullptr) << "between two";
  EXPECT_EQ(layout.tensor_at(131), &layout.tensors()[1]);
  EXPECT_EQ(layout.tensor_at(kPage), nullptr);
}

TEST(Layout, ALargeTensorBeginsOnAPageWhereThatSavesOneAndTheGapIsSmall) {
  const Layout layout = made(named({100 * kPage - 64, 100 * kPage}), kPage);
  EXPECT_EQ(layout.tensors()[1].offset, 100 * kPage);
  EXPECT_EQ(layout.pages_of(layout.tensors()[1]).count, 100u);
}

TEST(Layout, ItFollowsOnWhereAGapWouldWasteTooMuch) {
  const Layout layout = made(named({64, kPage}), kPage);
  EXPECT_EQ(layout.tensors()[1].offset, 64u);
  EXPECT_EQ(layout.pages(), 2u);
}

TEST(Layout, ATensorIsCalledOtherwise) {
  Layout layout = made(named({100, 200}), kPage);
  EXPECT_TRUE(layout.rename(0, "first").ok());
  EXPECT_TRUE(layout.rename(0, "first").ok());
  EXPECT_EQ(layout.find("t0"), nullptr);
  EXPECT_EQ(layout.find("first")->bytes, 100u);
  EXPECT_EQ(layout.describe(0), "page 0 (first, t1)");
  EXPECT_EQ(layout.rename(0, "t1").message(),
            "tensor 'first' cannot be called 't1': another tensor is");
  EXPECT_EQ(layout.rename(0, "").code(), Code::kInvalidArgument);
  EXPECT_EQ(layout.find("first")->bytes, 100u);
  EXPECT_TRUE(layout.rename(1, "t0").ok()) << "that name is free now";
}

TEST(Layout, WhatIsRemovedTouchesNoPageAndNobodyGetsItsPlace) {
  Layout layout = made(named({kPage - 64, 64, 2 * kPage, 64}), kPage);
  layout.remove(2);
  EXPECT_TRUE(layout.tensors()[2].removed());
  EXPECT_EQ(layout.find("t2"), nullptr);
  EXPECT_EQ(layout.pages_of(layout.tensors()[2]).count, 0u);
  EXPECT_TRUE(layout.tensors_on(1).empty());
  EXPECT_TRUE(layout.tensors_on(2).empty());
  EXPECT_EQ(layout.tensors()[3].offset, 3 * kPage) << "others stay where they are";
  layout.remove(0);
  EXPECT_EQ(layout.describe(0), "page 0 (t1)");
  auto again = layout.append({"t2", 2 * kPage, 1});
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(*again, 4u);
  EXPECT_GE(layout.tensors()[*again].offset, 3 * kPage + 64);
}

TEST(Layout, NothingMakesNoPages) {
  const Layout layout = made({}, kPage);
  EXPECT_EQ(layout.pages(), 0u);
  EXPECT_EQ(layout.waste(), 0);
  check(made(named({0, 0}), kPage), named({0, 0}));
}

TEST(Layout, WastesLessThanThreePercentOfRealModels) {
  constexpr std::size_t kFloat = 4;
  for (const std::size_t width : {256, 768, 1024, 4096}) {
    std::vector<TensorSpec> tensors = {{"wte", 50257 * width * kFloat},
                                       {"wpe", 1024 * width * kFloat}};
    for (int layer = 0; layer < 24; ++layer) {
      const std::string h = "h." + std::to_string(layer) + ".";
      tensors.push_back({h + "ln_1.weight", width * kFloat});
      tensors.push_back({h + "ln_1.bias", width * kFloat});
      tensors.push_back({h + "attn.weight", 3 * width * width * kFloat});
      tensors.push_back({h + "attn.bias", 3 * width * kFloat});
      tensors.push_back({h + "proj.weight", width * width * kFloat});
      tensors.push_back({h + "proj.bias", width * kFloat});
      tensors.push_back({h + "mlp.fc.weight", 4 * width * width * kFloat});
      tensors.push_back({h + "mlp.fc.bias", 4 * width * kFloat});
      tensors.push_back({h + "mlp.proj.weight", 4 * width * width * kFloat});
      tensors.push_back({h + "mlp.proj.bias", width * kFloat});
    }
    const Layout layout = made(tensors, kPageBytes);
    check(layout, tensors);
    std::printf("width %zu: %u pages, waste %.2f%%\n", width, layout.pages(), 100 * layout.waste());
  }
}

// Each is the worst for some simpler rule: a page for each, large ones on pages of their own.
TEST(Layout, WastesLessThanThreePercentWhateverTheTensorsAre) {
  const std::vector<std::vector<std::size_t>> patterns = {{kPage + 64},
                                                          {kPage / 2 + 64},
                                                          {64},
                                                          {kPage - 64, 128},
                                                          {kPage},
                                                          {2 * kPage - 64},
                                                          {1},
                                                          {kPage, 64},
                                                          {10 * kPage + 1, 1},
                                                          {0, kPage + 1},
                                                          {71 * kPage, 64},
                                                          {72 * kPage, 64},
                                                          {73 * kPage, 64}};
  for (const std::vector<std::size_t>& pattern : patterns) {
    std::vector<std::size_t> bytes;
    for (std::size_t i = 0; i < 5000; ++i) bytes.push_back(pattern[i % pattern.size()]);
    const std::vector<TensorSpec> tensors = named(bytes);
    check(made(tensors, kPage), tensors);
  }
}

TEST(Layout, WastesLessThanThreePercentOfRandomTensors) {
  for (std::uint32_t seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    std::vector<std::size_t> bytes;
    const std::size_t count = 1 + random() % 400;
    for (std::size_t i = 0; i < count; ++i) bytes.push_back((random() & 0xFFFF) >> (random() % 16));
    const std::vector<TensorSpec> tensors = named(bytes);
    SCOPED_TRACE(seed);
    check(made(tensors, kPage), tensors);
  }
}

// Sizes that follow each other in any order, and one that comes in bursts.
TEST(Layout, APageHoldsElementsOfOneSizeAndThreePercentHoldForEach) {
  for (std::uint32_t seed = 0; seed < 120; ++seed) {
    std::mt19937 random(seed);
    std::vector<TensorSpec> tensors;
    const std::size_t count = 1 + random() % 1500, burst = 1 + random() % 40;
    const unsigned most = 1 + random() % 16;
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint32_t element = 1u << (seed % 2 == 0 ? random() % 4 : i / burst % 3);
      const std::size_t elements = (random() & 0x3FFFF) >> (2 + random() % most);
      tensors.push_back({"t" + std::to_string(i), elements * element, element});
    }
    SCOPED_TRACE(seed);
    check(made(tensors, kPage), tensors);
  }
}

// Each of a size leaves its region to the other, again and again.
TEST(Layout, ThreePercentHoldWhereSizesTakeTurnsAndRegionsAreLeft) {
  for (const std::size_t pages : {1, 3, 100, 255, 256, 257, 300}) {
    SCOPED_TRACE(pages);
    std::vector<TensorSpec> tensors;
    for (std::size_t i = 0; i < 400; ++i) {
      const std::uint32_t element = i % 2 == 0 ? 2 : 4;
      tensors.push_back({"t" + std::to_string(i), (pages + i) * kPage + 64, element});
    }
    const Layout layout = made(tensors, kPage);
    check(layout, tensors);
    std::uint64_t bytes = 0;
    for (const TensorSpec& tensor : tensors) bytes += tensor.bytes;
    EXPECT_LT(layout.bytes(), 4 * bytes + 2 * kMinRegion * kPage);
  }
}

TEST(Layout, GrowsAsIfAllHadBeenGivenAtOnceAndMovesNothing) {
  std::vector<TensorSpec> tensors;
  for (std::size_t i = 0; i < 200; ++i) {
    const std::uint32_t element = i % 3 == 0 ? 2 : 4;
    tensors.push_back({"t" + std::to_string(i), i * 128, element});
  }
  const Layout whole = made(tensors, kPage);
  Layout grown = made({}, kPage);
  for (std::uint32_t i = 0; i < tensors.size(); ++i) {
    const auto placed = grown.append(tensors[i]);
    ASSERT_TRUE(placed.ok());
    EXPECT_EQ(placed.value(), i);
    for (std::uint32_t k = 0; k <= i; ++k) {
      ASSERT_EQ(grown.tensors()[k].offset, whole.tensors()[k].offset);
    }
  }
  EXPECT_EQ(grown.pages(), whole.pages());
}

TEST(Layout, WhatIsReservedIsFilledByPlaceAlone) {
  Layout layout = made({{"before", 100, 4}}, kPage);
  const auto reserved = layout.reserve(2);
  ASSERT_TRUE(reserved.ok());
  const std::uint64_t start = std::uint64_t{reserved.value()} * kPage;
  ASSERT_TRUE(layout.append_at({"second", kPage, 4}, start + kPage).ok());
  ASSERT_TRUE(layout.append({"after", 100, 4}).ok());
  ASSERT_TRUE(layout.append({"other", 3 * kPage, 2}).ok());
  ASSERT_TRUE(layout.append_at({"first", kPage, 4}, start).ok());
  EXPECT_EQ(layout.find("after")->offset, 128u);
  EXPECT_GE(layout.find("other")->offset, start + 2 * kPage);
  EXPECT_EQ(layout.describe(reserved.value()),
            "page " + std::to_string(reserved.value()) + " (first)");
  const auto refusal = [&](const TensorSpec& tensor, std::uint64_t offset) {
    const auto placed = layout.append_at(tensor, offset);
    EXPECT_FALSE(placed.ok());
    return placed.status().message();
  };
  EXPECT_NE(refusal({"x", 64, 4}, start + 64).find("'first' is there"), std::string::npos);
  EXPECT_NE(refusal({"x", 64, 4}, 256).find("not reserved"), std::string::npos);
  EXPECT_NE(refusal({"x", kPage, 4}, start + kPage + 64).find("not reserved"), std::string::npos);
}

TEST(Layout, FindsATensorByItsName) {
  const Layout layout = made(named({10, 20}), kPage);
  ASSERT_NE(layout.find("t1"), nullptr);
  EXPECT_EQ(layout.find("t1")->bytes, 20u);
  EXPECT_EQ(layout.find("t2"), nullptr);
}

std::string refusal(const std::vector<TensorSpec>& tensors, std::size_t page_bytes) {
  const auto layout = Layout::make(tensors, page_bytes);
  EXPECT_FALSE(layout.ok());
  EXPECT_EQ(layout.status().code(), Code::kInvalidArgument);
  return layout.status().message();
}

TEST(Layout, RefusesWhatItCannotPlaceByName) {
  EXPECT_NE(refusal({{"a", 1}, {"b", 2}, {"a", 3}}, kPage).find("'a'"), std::string::npos);
  EXPECT_NE(refusal({{"a", 1}, {"", 2}}, kPage).find("tensor 1"), std::string::npos);
  EXPECT_NE(refusal({{"odd", 10, 4}}, kPage).find("'odd' of 10 bytes"), std::string::npos);
  EXPECT_NE(refusal({{"odd", 12, 3}}, kPage).find("elements of 3 bytes"), std::string::npos);
  EXPECT_NE(refusal({{"odd", 12, 0}}, kPage).find("elements of 0 bytes"), std::string::npos);
  EXPECT_NE(refusal({}, 5000).find("5000"), std::string::npos);
  EXPECT_NE(refusal({}, 2048).find("2048"), std::string::npos);
  EXPECT_NE(refusal({{"vast", std::size_t{1} << 60}}, kPage).find("'vast'"), std::string::npos);
  const std::size_t half = std::size_t{1} << 43;  // of what can be numbered
  EXPECT_NE(refusal({{"one", half}, {"two", half}}, kPage).find("'two'"), std::string::npos);
}

}  // namespace
}  // namespace taco::zerocache
