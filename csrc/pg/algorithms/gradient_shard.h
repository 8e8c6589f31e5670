// The part of a gradient that a rank codes and sends to other groups of ranks (Topology::groups),
// in an all_reduce by a codec: what a Feedback (pg/codec.h) of that gradient covers.
#pragma once

#include <cstdint>

#include "pg/planning/topology.h"

namespace taco::pg {

struct Shard {
  std::uint64_t offset = 0;  // bytes from the beginning of the gradient
  std::uint64_t bytes = 0;   // 0: this rank sends nothing to other groups
};

// This rank's shard of a gradient of `bytes`. Pure; any thread.
Shard gradient_shard(std::uint64_t bytes, std::uint32_t element_bytes, const Topology& topology,
                     int rank);

}  // namespace taco::pg
