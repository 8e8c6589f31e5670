// The MAC addresses to which frames for a host's interfaces are sent.
//
// Pure functions; any thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "harp/drivers/frames/ethernet.h"
#include "harp/drivers/kernel/kernel_link.h"

namespace taco::harp {

// Those of these interfaces, by index, and of the ones that they are made of: frames for a bond may
// bear the address of any of its own (balance-alb). `links` are all that the host has.
std::vector<MacAddress> mac_addresses(std::span<const KernelLink> links,
                                      std::span<const std::uint32_t> interfaces);

}  // namespace taco::harp
