#include "zerocache/layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

namespace taco::zerocache {
namespace {

constexpr std::size_t kPage = 4096;
constexpr double kMostWaste = 0.03;

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

// What every layout owes, whatever the tensors are; a second opinion by going over all pages.
void check(const Layout& layout, const std::vector<TensorSpec>& tensors) {
  ASSERT_EQ(layout.tensors().size(), tensors.size());
  std::uint64_t end = 0;
  std::vector<std::vector<std::uint32_t>> on_page(layout.pages());
  for (std::uint32_t i = 0; i < tensors.size(); ++i) {
    const PlacedTensor& placed = layout.tensors()[i];
    EXPECT_EQ(placed.name, tensors[i].name);
    EXPECT_EQ(placed.bytes, tensors[i].bytes);
    EXPECT_EQ(placed.offset % kTensorAlignment, 0u);
    ASSERT_GE(placed.offset, end) << placed.name << " overlaps the one before";
    end = placed.offset + placed.bytes;
    const Run pages = layout.pages_of(placed);
    if (placed.bytes == 0) {
      EXPECT_EQ(pages.count, 0u);
      continue;
    }
    EXPECT_EQ(pages.first, placed.offset / layout.page_bytes());
    EXPECT_EQ(pages.first + pages.count - 1, (end - 1) / layout.page_bytes());
    for (std::uint32_t page = 0; page < pages.count; ++page)
      on_page[pages.first + page].push_back(i);
  }
  ASSERT_LE(end, layout.bytes());
  for (PageId page = 0; page < layout.pages(); ++page) {
    const auto run = layout.tensors_on(page);
    const std::vector<std::uint32_t> found(run.begin(), run.end());
    ASSERT_EQ(found, on_page[page]) << "page " << page;
    EXPECT_FALSE(found.empty()) << "page " << page << " holds nothing";
  }
  if (layout.pages() >= 64) {
    EXPECT_LT(layout.waste(), kMostWaste);
  }
}

TEST(Layout, SmallTensorsShareAPage) {
  const Layout layout = made(named({100, 4, 0, 64, 1000}), kPage);
  EXPECT_EQ(layout.pages(), 1u);
  EXPECT_EQ(layout.tensors()[1].offset, 128u);
  EXPECT_EQ(layout.tensors_on(0).size(), 4u);
  EXPECT_EQ(layout.describe(0), "page 0 (t0, t1 and 2 more)");
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
  EXPECT_NE(refusal({}, 5000).find("5000"), std::string::npos);
  EXPECT_NE(refusal({}, 2048).find("2048"), std::string::npos);
  EXPECT_NE(refusal({{"vast", std::size_t{1} << 60}}, kPage).find("'vast'"), std::string::npos);
  const std::size_t half = std::size_t{1} << 43;  // of what can be numbered
  EXPECT_NE(refusal({{"one", half}, {"two", half}}, kPage).find("'two'"), std::string::npos);
}

}  // namespace
}  // namespace taco::zerocache
