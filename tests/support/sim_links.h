// The links that simulated hosts are joined by. Test support.
#pragma once

#include "support/sim_network.h"

namespace taco::harp {

inline constexpr double kGigabit = 1.25e8;  // bytes a second

// Cables of 1 Gbit/s, and receivers with room for what is under way.
inline SimFaults gigabit() {
  SimFaults faults;
  faults.receive_buffer = 4 << 20;
  faults.bytes_per_second = kGigabit;
  return faults;
}

}  // namespace taco::harp
