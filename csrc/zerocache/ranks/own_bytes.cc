#include "zerocache/ranks/own_bytes.h"

#include <algorithm>

#include "zerocache/mover/tensor_bytes.h"

namespace taco::zerocache {

Status write_own_bytes(PageUses& pages, std::size_t page_bytes, const Shards& shards,
                       const PlacedTensor& tensor, Tier tier, std::uint64_t from,
                       std::span<const std::byte> bytes, bool* spoilt) {
  bool changed = false, last = false;
  Status status;
  for (std::size_t done = 0; done < bytes.size() && status.ok();) {
    const std::uint64_t at = tensor.offset + from + done;
    const std::size_t part =
        std::min<std::size_t>(bytes.size() - done, page_bytes - at % page_bytes);
    if (shards.owns(static_cast<PageId>(at / page_bytes))) {
      status = write_bytes(pages, page_bytes, tensor, tier, from + done, bytes.subspan(done, part),
                           &last);
      changed = changed || status.ok();
    }
    done += part;
  }
  if (spoilt != nullptr) *spoilt = (changed || last) && !status.ok();
  return status;
}

}  // namespace taco::zerocache
