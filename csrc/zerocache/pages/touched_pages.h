// The pages that a list of tensors touches, one after the other, each with those of them that lie
// on it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

#include "base/status.h"
#include "zerocache/pages/layout.h"

namespace taco::zerocache {

// `items` by rising offset of their tensors, none of which is empty; `tensor_of(item)` is an item's
// index in the layout. Calls `visit(page, items on it)`, and ends with the first failure.
template <typename Item, typename TensorOf, typename Visit>
Status for_each_touched_page(const Layout& layout, std::span<Item> items, const TensorOf& tensor_of,
                             const Visit& visit) {
  const auto run_of = [&](const Item& item) {
    return layout.pages_of(layout.tensors()[tensor_of(item)]);
  };
  PageId next = 0;       // the first page that is not visited yet
  std::size_t last = 0;  // the first item behind the page
  for (std::size_t first = 0; first < items.size(); ++first) {
    const Run run = run_of(items[first]);
    for (PageId page = std::max(run.first, next); page < run.first + run.count; ++page) {
      last = std::max(last, first);
      while (last < items.size() && run_of(items[last]).first <= page) ++last;
      TACO_RETURN_IF_ERROR(visit(page, items.subspan(first, last - first)));
      next = page + 1;
    }
  }
  return {};
}

}  // namespace taco::zerocache
