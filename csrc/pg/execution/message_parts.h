// Bytes from one rank to another are cut into parts where the transport takes no longer messages.
#pragma once

#include <algorithm>
#include <cstddef>

#include "harp/transport.h"

namespace taco::pg {

inline constexpr std::size_t kPartBytes = harp::kMaxMessageBytes;

// How many they are: one also where there are no bytes.
constexpr std::size_t parts_of(std::size_t bytes) {
  return std::max<std::size_t>(1, (bytes + kPartBytes - 1) / kPartBytes);
}

}  // namespace taco::pg
