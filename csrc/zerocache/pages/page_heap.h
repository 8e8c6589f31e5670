// Pages in the order of a key, the greatest on top; each knows its place, so that a page's key can
// change and the page can leave. O(log n) each, no allocation once the heap has grown.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "zerocache/pages/page.h"

namespace taco::zerocache {

class PageHeap {
 public:
  using Key = std::int64_t;

  void resize(std::size_t pages) { places_.resize(pages, kAbsent); }

  bool empty() const { return heap_.empty(); }
  std::size_t size() const { return heap_.size(); }
  PageId top() const { return heap_.front().page; }
  Key top_key() const { return heap_.front().key; }
  bool contains(PageId page) const { return places_[page] != kAbsent; }

  // Puts the page in or moves it.
  void set(PageId page, Key key) {
    std::size_t at = places_[page];
    if (at == kAbsent) {
      at = heap_.size();
      heap_.push_back({key, page});
      places_[page] = static_cast<std::uint32_t>(at);
    } else if (heap_[at].key == key) {
      return;
    }
    heap_[at].key = key;
    sift(at);
  }
  // Harmless where the page is not in.
  void remove(PageId page) {
    const std::size_t at = places_[page];
    if (at == kAbsent) return;
    places_[page] = kAbsent;
    const Item last = heap_.back();
    heap_.pop_back();
    if (at == heap_.size()) return;
    place(at, last);
    sift(at);
  }

 private:
  struct Item {
    Key key;
    PageId page;
  };
  static constexpr std::uint32_t kAbsent = std::numeric_limits<std::uint32_t>::max();

  // Equal keys: the lower page first, so that decisions do not depend on history.
  static bool above(const Item& a, const Item& b) {
    return a.key != b.key ? a.key > b.key : a.page < b.page;
  }
  void place(std::size_t at, const Item& item) {
    heap_[at] = item;
    places_[item.page] = static_cast<std::uint32_t>(at);
  }
  void sift(std::size_t at) {
    const Item item = heap_[at];
    for (; at > 0 && above(item, heap_[(at - 1) / 2]); at = (at - 1) / 2) {
      place(at, heap_[(at - 1) / 2]);
    }
    for (std::size_t child = 2 * at + 1; child < heap_.size(); child = 2 * at + 1) {
      if (child + 1 < heap_.size() && above(heap_[child + 1], heap_[child])) ++child;
      if (!above(heap_[child], item)) break;
      place(at, heap_[child]);
      at = child;
    }
    place(at, item);
  }

  std::vector<Item> heap_;
  std::vector<std::uint32_t> places_;
};

}  // namespace taco::zerocache
