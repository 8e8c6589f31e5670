#include "zerocache/checksum.h"

#include <cstdio>

// Compiled in, header only: nothing to be found when the program is loaded.
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace taco::zerocache {

std::uint64_t digest(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

std::uint64_t bind(std::uint64_t digest, const PageIdentity& identity) {
  const std::uint64_t words[] = {digest, identity.store, identity.page, identity.generation};
  return XXH3_64bits(words, sizeof words);
}

HexText hex(std::uint64_t value) {
  HexText text;
  std::snprintf(text.text, sizeof text.text, "%016llx", static_cast<unsigned long long>(value));
  return text;
}

}  // namespace taco::zerocache
