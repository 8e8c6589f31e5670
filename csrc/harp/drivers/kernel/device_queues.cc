#include "harp/drivers/kernel/device_queues.h"

#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>

#include "base/own_fd.h"

namespace taco::harp {

DeviceQueues device_queues(const std::string& device) {
  ethtool_channels channels{};
  channels.cmd = ETHTOOL_GCHANNELS;
  ifreq request{};
  memcpy(request.ifr_name, device.data(), std::min(device.size(), sizeof request.ifr_name - 1));
  request.ifr_data = reinterpret_cast<char*>(&channels);
  const OwnFd fd(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  DeviceQueues queues;
  if (!fd || ioctl(fd.get(), SIOCETHTOOL, &request) != 0) return queues;
  queues.now = std::max(channels.combined_count + channels.rx_count, 1u);
  queues.is_combined = channels.max_combined > 0;
  queues.most = std::max(queues.is_combined ? channels.max_combined : channels.max_rx, queues.now);
  return queues;
}

}  // namespace taco::harp
