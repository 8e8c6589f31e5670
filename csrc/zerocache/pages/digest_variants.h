// The digest of checksum.h, compiled for several instruction sets. All give the same number; the
// wider ones are as fast as memory. Private to checksum.cc and its tests.
#pragma once

#include <cstddef>
#include <cstdint>

namespace taco::zerocache {

using DigestFn = std::uint64_t (*)(const void* bytes, std::size_t count);
std::uint64_t digest_portable(const void* bytes, std::size_t count);
#if defined(__x86_64__)
std::uint64_t digest_avx2(const void* bytes, std::size_t count);
std::uint64_t digest_avx512(const void* bytes, std::size_t count);
#endif

}  // namespace taco::zerocache
