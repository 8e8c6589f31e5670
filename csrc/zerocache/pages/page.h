// The words that the whole page store shares. All parameters of a store lie in one range of
// addresses, cut into pages of one size and numbered from its start; a page is what moves between
// the tiers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

namespace taco::zerocache {

// Dense: a store of n pages has the pages 0 to n - 1, by rising address.
using PageId = std::uint32_t;
inline constexpr PageId kNoPage = std::numeric_limits<PageId>::max();

// Drawn at random when a store is made: no page of one store can pass for one of another.
using StoreId = std::uint64_t;

// Counts the write-backs of a page to disk: 0 before the first.
using Generation = std::uint64_t;

// Where the newest bytes of a page are. kHost is memory that a device copies from; where the device
// is the host itself, both are memory of this process.
enum class Tier : unsigned char { kDevice, kHost, kDisk };

// Direct I/O wants addresses, lengths and places in files to be multiples of this.
inline constexpr std::size_t kIoAlignment = 4096;

// Bytes of a page unless the store is told otherwise.
inline constexpr std::size_t kPageBytes = std::size_t{4} << 20;
inline constexpr std::size_t kMaxPageBytes = std::size_t{1} << 30;

constexpr bool valid_page_bytes(std::size_t bytes) {
  return bytes >= kIoAlignment && bytes <= kMaxPageBytes && (bytes & (bytes - 1)) == 0;
}

}  // namespace taco::zerocache
