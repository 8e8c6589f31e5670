// The checksum that tells whether the bytes read back are those that were written to that very
// page. A digest of the bytes (XXH3, 64 bits) is bound to the store, the page and the generation:
// so a flipped bit, an older version of the page and the bytes of another page all give another
// checksum.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "zerocache/pages/page.h"

namespace taco::zerocache {

struct PageIdentity {
  StoreId store = 0;
  PageId page = kNoPage;
  Generation generation = 0;
};

std::uint64_t digest(std::span<const std::byte> bytes);
// One digest can be held against many identities, which tells whose bytes the wrong ones are.
std::uint64_t bind(std::uint64_t digest, const PageIdentity& identity);

inline std::uint64_t checksum(std::span<const std::byte> bytes, const PageIdentity& identity) {
  return bind(digest(bytes), identity);
}

}  // namespace taco::zerocache
