#include "zerocache/ranks/shards.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <utility>

namespace taco::zerocache {

Shards Shards::deal(const Layout& layout, const StateLayout& state,
                    std::span<const std::uint32_t> trained, int rank, int ranks) {
  Shards shards;
  shards.rank_ = rank;
  shards.ranks_ = ranks;
  // By page: the elements of float32 that its step goes over.
  std::vector<std::uint64_t> weights(layout.pages());
  for (const std::uint32_t index : trained) {
    const PlacedTensor& tensor = layout.tensors()[index];
    const Run run = layout.pages_of(tensor);
    const std::uint64_t kinds = state.kinds().size() + 1;
    for (PageId page = run.first; page < run.first + run.count; ++page) {
      const std::uint64_t start = std::uint64_t{page} * layout.page_bytes();
      const std::uint64_t begin = std::max(tensor.offset, start);
      const std::uint64_t end = std::min(tensor.offset + tensor.bytes, start + layout.page_bytes());
      weights[page] += (end - begin) / tensor.element_bytes * kinds;
    }
  }
  using Share = std::pair<std::uint64_t, int>;  // so far, of this rank
  std::priority_queue<Share, std::vector<Share>, std::greater<>> least;
  for (int each = 0; each < ranks; ++each) least.push({0, each});
  for (PageId page = 0; page < layout.pages(); ++page) {
    shards.owners_.push_back(static_cast<int>(page % static_cast<PageId>(ranks)));
    if (weights[page] == 0) continue;
    const Share share = least.top();
    least.pop();
    shards.owners_.back() = share.second;
    least.push({share.first + weights[page], share.second});
  }
  shards.own_state(layout, state, trained);
  return shards;
}

Shards Shards::striped(const Layout& layout, const StateLayout& state,
                       std::span<const std::uint32_t> trained, const Stripes& stripes) {
  Shards shards;
  shards.rank_ = stripes.rank();
  shards.ranks_ = stripes.ranks();
  for (PageId page = 0; page < layout.pages(); ++page) {
    shards.owners_.push_back(stripes.owner(page));
  }
  shards.own_state(layout, state, trained);
  return shards;
}

void Shards::own_state(const Layout& layout, const StateLayout& state,
                       std::span<const std::uint32_t> trained) {
  for (const std::uint32_t index : trained) {
    const PlacedTensor& tensor = layout.tensors()[index];
    const Run run = layout.pages_of(tensor);
    for (PageId page = run.first; page < run.first + run.count; ++page) {
      for (std::uint32_t part = 0; part < StateLayout::parts_of(tensor.element_bytes); ++part) {
        for (const StateKind kind : state.kinds()) {
          const PageId mirror = state.page_of(page, part, kind);
          if (mirror != kNoPage) owners_[mirror] = owners_[page];
        }
      }
    }
  }
}

}  // namespace taco::zerocache
