#include "zerocache/ranks/own_bytes.h"

#include "zerocache/mover/tensor_bytes.h"
#include "zerocache/pages/each_page.h"

namespace taco::zerocache {

Status write_own_bytes(PageUses& pages, std::size_t page_bytes, const Shards& shards,
                       const PlacedTensor& tensor, Tier tier, std::uint64_t from,
                       std::span<const std::byte> bytes, bool* spoilt) {
  bool changed = false, last = false;
  Status status =
      each_page(page_bytes, tensor, from, bytes.size(),
                [&](PageId page, std::size_t, std::size_t first, std::size_t count) -> Status {
                  if (!shards.owns(page)) return {};
                  TACO_RETURN_IF_ERROR(write_bytes(pages, page_bytes, tensor, tier, from + first,
                                                   bytes.subspan(first, count), &last));
                  changed = true;
                  return {};
                });
  if (spoilt != nullptr) *spoilt = (changed || last) && !status.ok();
  return status;
}

}  // namespace taco::zerocache
