// How many queues a network device receives by, as ethtool(8) shows them (-l) and sets them (-L).
//
// Any thread.
#pragma once

#include <cstdint>
#include <string>

namespace taco::harp {

struct DeviceQueues {
  std::uint32_t now = 1;
  std::uint32_t most = 1;    // that the device may be given
  bool is_combined = false;  // each also sends
};

// One queue where the device does not say.
DeviceQueues device_queues(const std::string& device);

}  // namespace taco::harp
