// How many queues a network device receives by, as ethtool(8) shows them (-l) and sets them (-L),
// how fast it is, and what is behind it. Files of /sys tell that, too, but of the network namespace
// that they were mounted in.
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
// Its speed in Mbit/s; 0: it has none, or does not say.
std::uint32_t device_mbits(const std::string& device);
// A device of a bus, as that of PCI, is behind it: the other end is no interface or process of this
// machine. False where the kernel does not say.
bool is_hardware(const std::string& device);

}  // namespace taco::harp
