#include "harp/drivers/xdp/mac_addresses.h"

#include <algorithm>

namespace taco::harp {

std::vector<MacAddress> mac_addresses(std::span<const KernelLink> links,
                                      std::span<const std::uint32_t> interfaces) {
  const auto is_one = [&](std::uint32_t interface) {
    return interface != 0 && std::ranges::find(interfaces, interface) != interfaces.end();
  };
  std::vector<MacAddress> macs;
  for (const KernelLink& link : links) {
    if (link.mac.size() != sizeof(MacAddress)) continue;
    if (!is_one(link.index) && !is_one(link.master)) continue;
    std::ranges::copy(link.mac, macs.emplace_back().begin());
  }
  return macs;
}

}  // namespace taco::harp
