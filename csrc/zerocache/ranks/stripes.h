// How the pages of parameters are spread over ranks where no rank has all of them: stage 3 of
// Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", 2020.
//
// A stripe is as many neighbouring pages as there are ranks, and its i-th page belongs to rank i.
// So each stripe is gathered by one all_gather() and its gradients are averaged by one
// reduce_scatter(), to which every rank gives the same number of bytes at any moment, as if each
// page were cut into equal slices. Yet what a rank owns are whole pages: they move between its
// tiers, have checksums, are mirrored by pages of state, are stepped and saved as all pages are.
// In any run of neighbouring pages no rank owns more than one page more than another.
//
// The bytes gathered at once grow with the ranks; so pages are the smaller, the more ranks there
// are (striped_page_bytes()).
//
// Pure, and the same on all ranks that have the same layout. Any thread may read one that nobody
// changes.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "zerocache/pages/layout.h"
#include "zerocache/pages/page.h"

namespace taco::zerocache {

using StripeId = std::uint32_t;

inline constexpr std::size_t kMinStripedPageBytes = std::size_t{64} << 10;

// A page size for stripes of at most `stripe` bytes, if there are not too many ranks for that.
constexpr std::size_t striped_page_bytes(int ranks, std::size_t stripe = kPageBytes) {
  const std::size_t bytes = std::bit_floor(stripe / static_cast<std::size_t>(ranks));
  return std::max(bytes, kMinStripedPageBytes);
}

class Stripes {
 public:
  // `parameters`: tensors of the layout, by index. Its other pages are those of state; they belong
  // to nobody here.
  Stripes(const Layout& layout, std::span<const std::uint32_t> parameters, int rank, int ranks)
      : rank_(rank), ranks_(ranks), covered_(layout.pages()) {
    for (const std::uint32_t index : parameters) {
      cover(layout.pages_of(layout.tensors()[index]));
    }
  }

  // Parameters come and go while a model is being built.
  void cover(const Run& run) {
    covered_.resize(std::max<std::size_t>(covered_.size(), run.first + run.count));
    for (PageId page = run.first; page < run.first + run.count; ++page) covered_[page] = true;
  }
  void uncover(PageId page) { covered_[page] = false; }

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  StripeId stripe_of(PageId page) const { return page / static_cast<PageId>(ranks_); }
  int owner(PageId page) const { return static_cast<int>(page % static_cast<PageId>(ranks_)); }
  bool owns(PageId page) const { return owner(page) == rank_; }
  // Whether it is a page of parameters.
  bool covers(PageId page) const { return page < covered_.size() && covered_[page]; }
  PageId first_page(StripeId stripe) const { return stripe * static_cast<PageId>(ranks_); }
  // The page of a stripe that a rank owns; kNoPage where that is none of parameters.
  PageId page_of(StripeId stripe, int rank) const {
    const PageId page = first_page(stripe) + static_cast<PageId>(rank);
    return covers(page) ? page : kNoPage;
  }
  // One more than the last.
  StripeId count() const {
    return (static_cast<StripeId>(covered_.size()) + static_cast<StripeId>(ranks_) - 1) /
           static_cast<StripeId>(ranks_);
  }

 private:
  const int rank_, ranks_;
  std::vector<bool> covered_;  // by page
};

}  // namespace taco::zerocache
