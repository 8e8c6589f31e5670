// Reads and writes a tensor wherever its pages are, one page after the other: for checkpoints and
// for callers that ask for a whole tensor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.h"
#include "zerocache/pages/layout.h"
#include "zerocache/pages/page_uses.h"

namespace taco::zerocache {

// `from` is in bytes from the tensor's start; the span ends within it. Pages are used in `tier`,
// which is kHost or, where the device's memory is the host's, kDevice. What was never written reads
// as zeros. A failure is that of PageUses::begin(), and what was copied until then is copied. Where
// a write has changed anything then, or lost it, `*spoilt` is true; it may be null.
Status read_bytes(PageUses& pages, std::size_t page_bytes, const PlacedTensor& tensor, Tier tier,
                  std::uint64_t from, std::span<std::byte> to);
Status write_bytes(PageUses& pages, std::size_t page_bytes, const PlacedTensor& tensor, Tier tier,
                   std::uint64_t from, std::span<const std::byte> bytes, bool* spoilt = nullptr);

// Gives up pages whose bytes nobody needs. `keys` is above all page numbers, and the caller's own.
Status give_up(PageUses& pages, OperatorKey keys, const Run& run);

}  // namespace taco::zerocache
