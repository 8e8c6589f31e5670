// Which bytes of a store's range each tensor has. Tensors lie in the order in which they are given,
// which is the order of their first use where that is known; each is contiguous, at a multiple of
// kTensorAlignment, and small ones share pages.
//
// A tensor moves on to the next page's start where it would otherwise touch a page more than it
// needs, but only as long as the gaps are at most 1/kGapShare of the bytes placed so far. So of
// n >= 64 pages less than 1/kGapShare + 1/n < 3% is waste, whatever the tensors are; to begin every
// large tensor on a page of its own would waste half where each is a little longer than a page.
//
// Pure: equal tensors and page sizes give equal layouts. Any thread may read one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "zerocache/page.h"

namespace taco::zerocache {

inline constexpr std::size_t kTensorAlignment = 64;
inline constexpr std::uint64_t kGapShare = 72;

struct TensorSpec {
  std::string name;
  std::size_t bytes = 0;
};

struct PlacedTensor {
  std::string name;
  std::size_t bytes = 0;
  std::uint64_t offset = 0;  // of its first byte in the store's range
};

// Neighbours, pages or tensors by their index: [first, first + count).
struct Run {
  std::uint32_t first = 0;
  std::uint32_t count = 0;
};

class Layout {
 public:
  // kInvalidArgument for a page size that is none, an empty name or one that occurs twice, and for
  // more pages than can be numbered.
  static Result<Layout> make(const std::vector<TensorSpec>& tensors,
                             std::size_t page_bytes = kPageBytes);

  std::size_t page_bytes() const { return page_bytes_; }
  std::uint32_t pages() const { return pages_; }
  // Of the whole range.
  std::uint64_t bytes() const { return std::uint64_t{pages_} * page_bytes_; }
  // By rising offset, as they were given.
  std::span<const PlacedTensor> tensors() const { return tensors_; }
  // Null if there is none of that name.
  const PlacedTensor* find(std::string_view name) const;

  // The pages that a tensor touches: none if it is empty.
  Run pages_of(const PlacedTensor& tensor) const;
  // The tensors that lie on a page, wholly or in part, by index; empty ones in between count in.
  Run tensors_on(PageId page) const;
  // "page 17 (h.3.attn.weight, h.3.attn.bias and 4 more)"
  std::string describe(PageId page) const;

  // The share of the range that no tensor has, where a tensor's bytes are those up to the next
  // multiple of kTensorAlignment.
  double waste() const;

 private:
  std::size_t page_bytes_ = kPageBytes;
  std::uint32_t pages_ = 0;
  std::uint64_t padded_bytes_ = 0;
  std::vector<PlacedTensor> tensors_;
  std::unordered_map<std::string, std::uint32_t> by_name_;
};

}  // namespace taco::zerocache
