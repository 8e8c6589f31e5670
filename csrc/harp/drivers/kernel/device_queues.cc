#include "harp/drivers/kernel/device_queues.h"

#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>

#include "base/own_fd.h"
#include "harp/drivers/kernel/kernel_link.h"

namespace taco::harp {

namespace {

// `about` begins with a command of ethtool's, and is where the answer goes. Reading some of these
// waits for a lock of all the kernel's links.
bool ask_device(const std::string& device, void* about) {
  ifreq request{};
  memcpy(request.ifr_name, device.data(), std::min(device.size(), sizeof request.ifr_name - 1));
  request.ifr_data = static_cast<char*>(about);
  const OwnFd fd(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  return fd && ioctl(fd.get(), SIOCETHTOOL, &request) == 0;
}

}  // namespace

DeviceQueues device_queues(const std::string& device) {
  ethtool_channels channels{};
  channels.cmd = ETHTOOL_GCHANNELS;
  DeviceQueues queues;
  if (!ask_device(device, &channels)) return queues;
  queues.now = std::max(channels.combined_count + channels.rx_count, 1u);
  queues.is_combined = channels.max_combined > 0;
  queues.most = std::max(queues.is_combined ? channels.max_combined : channels.max_rx, queues.now);
  return queues;
}

// The kernel tells first how long its lists of modes are (below zero), then the rest to who knows.
std::uint32_t device_mbits(const std::string& device) {
  constexpr std::size_t kMaxWords = 3 * std::numeric_limits<std::int8_t>::max();
  alignas(ethtool_link_settings)
      std::array<std::byte, sizeof(ethtool_link_settings) + kMaxWords * sizeof(std::uint32_t)>
          room{};
  auto& settings = *reinterpret_cast<ethtool_link_settings*>(room.data());
  settings.cmd = ETHTOOL_GLINKSETTINGS;
  if (!ask_device(device, &settings)) return 0;
  settings.cmd = ETHTOOL_GLINKSETTINGS;
  settings.link_mode_masks_nwords = static_cast<std::int8_t>(-settings.link_mode_masks_nwords);
  if (!ask_device(device, &settings)) return 0;
  return settings.speed == static_cast<std::uint32_t>(SPEED_UNKNOWN) ? 0 : settings.speed;
}

// Interfaces made in software have a kind, as ip(8) shows it, and hardware has none, or has one all
// the same (IPoIB): where Linux is 5.14 or newer, it tells what device is behind an interface.
bool is_hardware(const std::string& device) {
  const auto link = find_kernel_link(device);
  if (!link) return false;
  const bool is_software = !link->kind.empty() || (link->flags & IFF_LOOPBACK) != 0;
  return !link->device.empty() || !is_software;
}

}  // namespace taco::harp
