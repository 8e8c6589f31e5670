// What ranks tell each other beside pages: whether all went well, and small records. In each of
// these calls all ranks take part, and all of them come to the same end.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "base/status.h"
#include "zerocache/collectives.h"

namespace taco::zerocache {

// all_gather(), waited for.
Status all_gather(Collectives& ranks, std::span<const std::byte> own, std::span<std::byte> all);

// OK if all ranks are. Otherwise a failure everywhere: a rank's own where it has one, elsewhere
// that of the first rank that has, with its number and its code.
Status agree(Collectives& ranks, const Status& own);

// What each rank has given, by rank, of whatever lengths.
Result<std::vector<std::vector<std::byte>>> gather(Collectives& ranks,
                                                   std::span<const std::byte> own);

}  // namespace taco::zerocache
