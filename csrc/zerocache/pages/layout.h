// The layout of a store: which bytes of its range each tensor has. Tensors are placed in the order
// in which they are given, which is the order of their first use where that is known; each is
// contiguous, at a multiple of kTensorAlignment, and small ones share pages. More can be appended
// at any time, and nobody's place changes by that.
//
// A page holds elements of one size, so that what belongs to a page element by element, as the
// state of an optimizer, lies on pages too (state_layout.h). Each element size has a region of the
// range, in which its tensors follow one another. Where a region is full and another lies behind
// it, a new one begins at the range's end, as long as all of that size before, kMinRegion pages
// at least. Pages that no tensor touches are numbers and addresses, and take no memory anywhere.
//
// A tensor moves on to the next page's start where it would otherwise touch a page more than it
// needs, but only as long as the gaps are at most 1/kGapShare of the bytes placed so far. So of
// n >= 64 touched pages of an element size less than 1/kGapShare + 1/64 < 3% is waste, whatever the
// tensors are: a region wastes less than one page at its end, and before a region is left for a new
// one, it and the tensor that does not fit are longer together than all regions before. (To begin
// every large tensor on a page of its own would waste half where each is a little longer than a
// page.)
//
// Pure: equal calls give equal layouts. One thread at a time (Mover::change_layout()).
#pragma once

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "zerocache/pages/page.h"

namespace taco::zerocache {

inline constexpr std::size_t kTensorAlignment = 64;
inline constexpr std::uint64_t kGapShare = 72;
inline constexpr std::uint32_t kMinRegion = 256;

struct TensorSpec {
  std::string name;
  std::size_t bytes = 0;
  std::uint32_t element_bytes = 1;
};

struct PlacedTensor {
  std::string name;
  std::size_t bytes = 0;
  std::uint64_t offset = 0;  // of its first byte in the store's range
  std::uint32_t element_bytes = 1;
  bool removed() const { return name.empty(); }
};

// Neighbouring pages: [first, first + count).
struct Run {
  std::uint32_t first = 0;
  std::uint32_t count = 0;
  bool contains(std::uint32_t page) const { return first <= page && page - first < count; }
  std::vector<std::uint32_t> pages() const {
    std::vector<std::uint32_t> all(count);
    std::iota(all.begin(), all.end(), first);
    return all;
  }
};

class Layout {
 public:
  // Fails where append() does; kInvalidArgument for a page size that is none.
  static Result<Layout> make(const std::vector<TensorSpec>& tensors,
                             std::size_t page_bytes = kPageBytes);

  // Returns the tensor's index. kInvalidArgument, and nothing changes, for an empty name or one
  // that is taken, for bytes that are no whole elements, for elements that no page or line of 64
  // bytes has a whole number of, and for more pages than can be numbered.
  Result<std::uint32_t> append(const TensorSpec& tensor);
  // Pages at the end of the range that append() leaves alone: append_at() alone puts tensors there.
  // Returns the first.
  Result<PageId> reserve(std::uint64_t pages);
  // kInvalidArgument too where there is another tensor already, or nothing is reserved.
  Result<std::uint32_t> append_at(const TensorSpec& tensor, std::uint64_t offset);
  // Calls a tensor otherwise. kInvalidArgument, and nothing changes, for an empty name or one that
  // is taken.
  Status rename(std::uint32_t index, const std::string& name);
  // A tensor is gone: its place is nobody's, and is not given to another. All indices stay; its own
  // is that of an empty tensor without a name (removed()).
  void remove(std::uint32_t index);

  std::size_t page_bytes() const { return page_bytes_; }
  // One more than the last that is touched or reserved.
  std::uint32_t pages() const { return pages_; }
  // The length of the whole range.
  std::uint64_t bytes() const { return std::uint64_t{pages_} * page_bytes_; }
  // The tensors as they were given. Appending moves them.
  std::span<const PlacedTensor> tensors() const { return tensors_; }
  // Null if there is none of that name.
  const PlacedTensor* find(std::string_view name) const;

  // The pages that a tensor touches: none if it is empty.
  Run pages_of(const PlacedTensor& tensor) const;
  // Indices of the tensors that lie on a page, wholly or in part, by rising offset; not of empty
  // ones.
  std::span<const std::uint32_t> tensors_on(PageId page) const;
  // The one that has this byte of the range; null: none.
  const PlacedTensor* tensor_at(std::uint64_t offset) const;
  // "page 17 (h.3.attn.weight, h.3.attn.bias and 4 more)"
  std::string describe(PageId page) const;

  // The share of the touched pages that no tensor has, where a tensor's bytes are those up to the
  // next multiple of kTensorAlignment.
  double waste() const;

 private:
  // Pages of one element size, in bytes of the range.
  struct Region {
    std::uint64_t end = 0;               // of what is placed
    std::uint64_t limit = 0;             // it cannot go on beyond, unless it is the range's last
    std::uint64_t all = 0;               // how long all regions of this size are together
    std::uint64_t padded = 0, gaps = 0;  // in all of them
  };

  Layout() = default;
  Status check(const TensorSpec& tensor) const;
  std::uint64_t max_bytes() const;
  std::uint32_t insert(const TensorSpec& tensor, std::uint64_t offset);

  std::size_t page_bytes_ = kPageBytes;
  std::uint32_t pages_ = 0;
  std::uint64_t range_end_ = 0;                        // of regions and all that is reserved
  std::unordered_map<std::uint32_t, Region> regions_;  // by element size: the open one
  std::vector<Run> reserved_;                          // by rising page
  std::vector<PlacedTensor> tensors_;
  std::vector<std::uint32_t> by_offset_;
  std::unordered_map<std::string, std::uint32_t> by_name_;
};

}  // namespace taco::zerocache
