#include "zerocache/pages/checksum.h"

#include <string_view>

#include "kernels/kernels.h"
#include "zerocache/pages/digest_variants.h"

namespace taco::zerocache {
namespace {

DigestFn choose() {
#if defined(__x86_64__)
  const std::string_view isa = kernels::isa_name();
  if (isa == "avx512") return digest_avx512;
  if (isa == "avx2") return digest_avx2;
#endif
  return digest_portable;
}

}  // namespace

std::uint64_t digest(std::span<const std::byte> bytes) {
  static const DigestFn chosen = choose();
  return chosen(bytes.data(), bytes.size());
}

std::uint64_t bind(std::uint64_t digest, const PageIdentity& identity) {
  const std::uint64_t words[] = {digest, identity.store, identity.page, identity.generation};
  return digest_portable(words, sizeof words);
}

}  // namespace taco::zerocache
