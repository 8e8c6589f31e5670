// Counts what the codecs of this folder have done since the process began, for taco_torch.stats().
// Any thread may ask; figures that are being added to meanwhile need not be of the same moment.
#pragma once

#include <cstdint>

#include "base/clock.h"

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

// For codecs, after each part of a block. Any thread.
void count_encoding(Duration spent);
void count_decoding(Duration spent);
// Once a block is whole.
void count_encoded(std::uint64_t bytes_before, std::uint64_t bytes_after);
void count_decoded();

}  // namespace taco::pg
