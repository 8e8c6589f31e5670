// Calls by which ranks tell each other more than pages: whether all went well, and small records.
// In each of these calls all ranks take part, and all of them come to the same end.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "zerocache/ranks/collectives.h"

namespace taco::zerocache {

// all_gather(), waited for.
Status all_gather(Collectives& ranks, std::span<const std::byte> own, std::span<std::byte> all);

// Returns what each rank has given, by rank.
template <class Value>
Result<std::vector<Value>> gather_values(Collectives& ranks, const Value& own) {
  std::vector<Value> all(static_cast<std::size_t>(ranks.size()));
  TACO_RETURN_IF_ERROR(
      all_gather(ranks, std::as_bytes(std::span(&own, 1)), std::as_writable_bytes(std::span(all))));
  return all;
}

// The first rank that has given another value than rank 0; 0: none.
template <class Value>
std::uint32_t first_other(const std::vector<Value>& all) {
  const auto other =
      std::find_if(all.begin(), all.end(), [&](const Value& each) { return each != all.front(); });
  return other == all.end() ? 0 : static_cast<std::uint32_t>(other - all.begin());
}

// OK if all ranks are. Otherwise a failure everywhere: a rank's own where it has one, elsewhere
// that of the first rank that has, with its number and its code.
Status agree(Collectives& ranks, const Status& own);

// Returns what each rank has given, by rank; lengths may differ.
Result<std::vector<std::vector<std::byte>>> gather(Collectives& ranks,
                                                   std::span<const std::byte> own);

}  // namespace taco::zerocache
