#include "zerocache/mover/tensor_bytes.h"

#include <algorithm>
#include <cstring>

#include "base/assert.h"

namespace taco::zerocache {
namespace {

// visit(page, place in it, first byte of the span, bytes) for each page that the bytes lie on.
template <class Visit>
Status each_page(std::size_t page_bytes, const PlacedTensor& tensor, std::uint64_t from,
                 std::size_t bytes, const Visit& visit) {
  TACO_ASSERT(from <= tensor.bytes && bytes <= tensor.bytes - from);
  for (std::size_t done = 0; done < bytes;) {
    const std::uint64_t at = tensor.offset + from + done;
    const std::size_t place = at % page_bytes;
    const std::size_t part = std::min(bytes - done, page_bytes - place);
    TACO_RETURN_IF_ERROR(visit(static_cast<PageId>(at / page_bytes), place, done, part));
    done += part;
  }
  return {};
}

}  // namespace

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
