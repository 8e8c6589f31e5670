// The MAC addresses to which frames for a host's interfaces are sent.
//
// Any thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "harp/drivers/frames/ethernet.h"

namespace taco::harp {

// Those of these interfaces, by index, and of the ones that they are made of: frames for a bond may
// bear the address of any of its own (balance-alb).
Result<std::vector<MacAddress>> mac_addresses(std::span<const std::uint32_t> interfaces);

}  // namespace taco::harp
