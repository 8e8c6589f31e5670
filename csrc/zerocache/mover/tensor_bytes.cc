#include "zerocache/mover/tensor_bytes.h"

#include <cstring>

#include "zerocache/pages/each_page.h"

namespace taco::zerocache {
Status read_bytes(PageUses& pages, std::size_t page_bytes, const PlacedTensor& tensor, Tier tier,
                  std::uint64_t from, std::span<std::byte> to) {
  return each_page(
      page_bytes, tensor, from, to.size(),
      [&](PageId page, std::size_t place, std::size_t first, std::size_t bytes) -> Status {
        if (!pages.has_content(page)) {
          std::memset(to.data() + first, 0, bytes);
          return {};
        }
        const Access access = {page, tier};
        TACO_RETURN_IF_ERROR(pages.begin(kBytesKeys + page, {&access, 1}));
        std::memcpy(to.data() + first, pages.address(page, tier) + place, bytes);
        pages.end(kBytesKeys + page);
        return {};
      });
}

Status write_bytes(PageUses& pages, std::size_t page_bytes, const PlacedTensor& tensor, Tier tier,
                   std::uint64_t from, std::span<const std::byte> bytes, bool* spoilt) {
  bool changed = false;
  Status status = each_page(
      page_bytes, tensor, from, bytes.size(),
      [&](PageId page, std::size_t place, std::size_t first, std::size_t count) -> Status {
        const bool holds = pages.has_content(page);
        const bool whole = count == page_bytes;
        const Access access = {page, tier, holds && !whole, true};
        Status begun = pages.begin(kBytesKeys + page, {&access, 1});
        if (!begun.ok()) {
          // A page that was to be written whole has lost its bytes, unless that was refused at
          // once.
          changed = changed || (holds && whole && begun.code() != Code::kInvalidArgument);
          return begun;
        }
        changed = true;
        std::byte* const at = pages.address(page, tier);
        if (!holds && !whole) std::memset(at, 0, page_bytes);
        std::memcpy(at + place, bytes.data() + first, count);
        pages.end(kBytesKeys + page);
        return {};
      });
  if (spoilt != nullptr) *spoilt = changed && !status.ok();
  return status;
}

Status give_up(PageUses& pages, OperatorKey keys, const Run& run) {
  for (PageId page = run.first; page < run.first + run.count; ++page) {
    if (!pages.has_content(page)) continue;
    const Access access{
        .page = page, .tier = Tier::kHost, .reads = false, .writes = true, .last = true};
    TACO_RETURN_IF_ERROR(pages.begin(keys | page, {&access, 1}));
    pages.end(keys | page);
  }
  return {};
}

}  // namespace taco::zerocache
