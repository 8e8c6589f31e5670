// Bytes from one process to another are cut into parts where the transport takes no longer
// messages.
#pragma once

#include <algorithm>
#include <cstddef>

#include "harp/transport.h"

namespace taco::harp {

inline constexpr std::size_t kPartBytes = kMaxMessageBytes;

// How many they are: one also where there are no bytes.
constexpr std::size_t parts_of(std::size_t bytes, std::size_t part_bytes = kPartBytes) {
  return std::max<std::size_t>(1, (bytes + part_bytes - 1) / part_bytes);
}

}  // namespace taco::harp
