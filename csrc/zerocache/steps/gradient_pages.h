// The pages on which gradients lie from the time when they are final until they are stepped, if
// they are not to stay in memory: on pages of their own that mirror those of the parameters. A
// gradient has the element size of its parameter, so element i of a page of parameters has its
// gradient at element i of the mirror page, and a step reads both at one place.
//
// No tensor of the layout lies on these pages: they belong to no checkpoint, and hold nothing
// between two steps. They are used in host memory, and move to the disk as any others.
//
// One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <vector>

#include "base/status.h"
#include "zerocache/pages/layout.h"
#include "zerocache/pages/page_uses.h"

namespace taco::zerocache {

class GradientPages {
 public:
  // Reserves pages of `layout` for the gradients of `parameters`, tensors of it by index. What
  // Layout::reserve() refuses.
  static Result<GradientPages> append_to(Layout& layout, std::span<const std::uint32_t> parameters);

  // The gradients' page that mirrors a page of parameters; kNoPage where none of these lies on it.
  PageId page_of(PageId parameters) const;
  bool is_gradient(PageId page) const;
  // The most that can hold something at once.
  std::uint32_t count() const { return count_; }

  // Puts the whole gradient of one of the parameters on its pages: as many bytes as the parameter
  // has. A failure is that of PageUses::begin(); the gradient is lost then, if there was one.
  Status keep(PageUses& pages, const Layout& layout, std::uint32_t parameter,
              std::span<const std::byte> gradient);
  // Whether the pages have its gradient.
  bool holds(std::uint32_t parameter) const { return kept_.contains(parameter); }
  // A gradient that the pages have. A failure is that of PageUses::begin().
  Status read(PageUses& pages, const Layout& layout, std::uint32_t parameter,
              std::span<std::byte> to) const;
  // All of them, and what their pages took.
  Status drop(PageUses& pages);

 private:
  struct Mirrored {
    Run parameters;
    PageId first = kNoPage;
  };
  const Mirrored* run_of(PageId parameters) const;
  PlacedTensor mirror_of(const Layout& layout, std::uint32_t parameter) const;

  std::vector<Mirrored> runs_;  // by rising page of parameters
  std::uint32_t count_ = 0;
  std::set<std::uint32_t> kept_;
};

}  // namespace taco::zerocache
