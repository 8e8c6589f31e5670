#include "harp/drivers/kernel/device_queues.h"

#include <linux/ethtool.h>
#include <linux/if_link.h>
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
#include "harp/drivers/kernel/netlink.h"

namespace taco::harp {

namespace {

// IFLA_PARENT_DEV_NAME, which headers older than Linux 5.14 lack.
constexpr int kParentName = 56;

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
  const auto fd = open_netlink(0);
  if (!fd.ok()) return false;
  ifinfomsg header{};
  NetlinkRequest request(RTM_GETLINK, 1, header);
  const std::string name = device.substr(0, IFNAMSIZ - 1);
  request.add(IFLA_IFNAME, std::as_bytes(std::span(name.c_str(), name.size() + 1)));
  NetlinkAnswer answer;
  const nlmsghdr* const link = ask_kernel(fd.value().get(), request, RTM_NEWLINK, answer);
  if (link == nullptr || body_of(*link).size() < sizeof header) return false;
  memcpy(&header, body_of(*link).data(), sizeof header);
  bool has_parent = false, has_kind = (header.ifi_flags & IFF_LOOPBACK) != 0;
  for_attributes(body_of(*link), sizeof header, [&](int type, std::span<const std::byte> value) {
    has_parent |= type == kParentName;
    if (type != IFLA_LINKINFO) return;
    for_attributes(value, 0, [&](int inner, std::span<const std::byte>) {
      has_kind |= inner == IFLA_INFO_KIND;
    });
  });
  return has_parent || !has_kind;
}

}  // namespace taco::harp
