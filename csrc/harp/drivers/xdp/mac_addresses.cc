#include "harp/drivers/xdp/mac_addresses.h"

#include <linux/if_link.h>
#include <string.h>

#include <algorithm>
#include <optional>

#include "harp/drivers/kernel/netlink.h"

namespace taco::harp {

namespace {

struct MacOfLink {
  std::uint32_t interface = 0;
  std::uint32_t master = 0;  // the bond, team or bridge that it is a part of; 0: of none
  std::optional<MacAddress> mac;
};

MacOfLink read_mac_of_link(const nlmsghdr& message) {
  MacOfLink link;
  ifinfomsg header{};
  const std::span<const std::byte> body = body_of(message);
  if (message.nlmsg_type != RTM_NEWLINK || body.size() < sizeof header) return link;
  memcpy(&header, body.data(), sizeof header);
  link.interface = static_cast<std::uint32_t>(header.ifi_index);
  for_attributes(body, sizeof header, [&](int type, std::span<const std::byte> value) {
    if (type == IFLA_MASTER) link.master = attribute_number(value);
    if (type != IFLA_ADDRESS || value.size() != sizeof(MacAddress)) return;
    link.mac.emplace();
    std::ranges::copy(value, link.mac->begin());
  });
  return link;
}

}  // namespace

Result<std::vector<MacAddress>> mac_addresses(std::span<const std::uint32_t> interfaces) {
  const auto listed = list_kernel_links();
  if (!listed.ok()) return listed.status();
  const auto is_one = [&](std::uint32_t interface) {
    return interface != 0 && std::ranges::find(interfaces, interface) != interfaces.end();
  };
  std::vector<MacAddress> macs;
  for_messages(listed.value(), [&](const nlmsghdr& each) {
    const MacOfLink link = read_mac_of_link(each);
    if (link.mac && (is_one(link.interface) || is_one(link.master))) macs.push_back(*link.mac);
  });
  return macs;
}

}  // namespace taco::harp
