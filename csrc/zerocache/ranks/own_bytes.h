// Writes a tensor whose pages belong to several ranks: the bytes on this rank's own pages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.h"
#include "zerocache/pages/layout.h"
#include "zerocache/pages/page_uses.h"
#include "zerocache/ranks/shards.h"

namespace taco::zerocache {

// As write_bytes() (tensor_bytes.h), but bytes on pages of other ranks are passed over.
Status write_own_bytes(PageUses& pages, std::size_t page_bytes, const Shards& shards,
                       const PlacedTensor& tensor, Tier tier, std::uint64_t from,
                       std::span<const std::byte> bytes, bool* spoilt = nullptr);

}  // namespace taco::zerocache
