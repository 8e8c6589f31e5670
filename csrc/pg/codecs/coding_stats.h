// What the codecs of this folder have done since the process began, for taco_torch.stats(). Any
// thread may ask; figures that are being added to meanwhile need not be of the same moment.
#pragma once

#include <cstdint>

namespace taco::pg {

struct CodingStats {
  std::uint64_t blocks_encoded = 0;
  std::uint64_t blocks_decoded = 0;
  std::uint64_t bytes_before = 0;  // of encoded blocks, and what they became
  std::uint64_t bytes_after = 0;
  double encode_seconds = 0;
  double decode_seconds = 0;  // with reducing
};

CodingStats coding_stats();

}  // namespace taco::pg
