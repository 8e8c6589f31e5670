// Shards say which rank steps which pages of parameters and keeps the state that belongs to them.
//
// Where several ranks hold the same parameters (stage 1 of Rajbhandari et al., "ZeRO: Memory
// Optimizations Toward Training Trillion Parameter Models", 2020), pages are dealt out whole, by
// the bytes of what is trained on them. So each rank's share differs from any other's by the state
// of one page at most. Where no rank holds all of them (stage 3), the owner of a page is told by
// stripes.h, and its state follows.
//
// Pure, and the same on all ranks that have the same layout. Any thread may read one.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "zerocache/pages/layout.h"
#include "zerocache/pages/page.h"
#include "zerocache/pages/state_layout.h"
#include "zerocache/ranks/stripes.h"

namespace taco::zerocache {

class Shards {
 public:
  // One rank, to which everything belongs.
  Shards() = default;
  // `trained`: the parameters that `state` was appended for, by index in the layout.
  static Shards deal(const Layout& layout, const StateLayout& state,
                     std::span<const std::uint32_t> trained, int rank, int ranks);
  // Owners as `stripes` have them.
  static Shards striped(const Layout& layout, const StateLayout& state,
                        std::span<const std::uint32_t> trained, const Stripes& stripes);

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  // The owner of a page of parameters or of state. Parameters that are not trained have an owner
  // too, who saves them.
  int owner(PageId page) const {
    if (page < owners_.size()) return owners_[page];
    return static_cast<int>(page % static_cast<PageId>(ranks_));
  }
  bool owns(PageId page) const { return owner(page) == rank_; }

 private:
  // Pages of state belong to who owns what they mirror.
  void own_state(const Layout& layout, const StateLayout& state,
                 std::span<const std::uint32_t> trained);

  int rank_ = 0, ranks_ = 1;
  std::vector<int> owners_;  // by page
};

}  // namespace taco::zerocache
