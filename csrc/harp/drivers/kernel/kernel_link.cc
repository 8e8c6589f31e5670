#include "harp/drivers/kernel/kernel_link.h"

#include <linux/if_link.h>
#include <net/if.h>
#include <string.h>

#include <span>
#include <utility>

#include "harp/drivers/kernel/netlink.h"

namespace taco::harp {

namespace {

// IFLA_PARENT_DEV_NAME and its bus's, which headers older than Linux 5.14 lack.
constexpr int kParentName = 56, kParentBus = 57;

std::string attribute_text(std::span<const std::byte> value) {
  const auto* const text = reinterpret_cast<const char*>(value.data());
  return std::string(text, strnlen(text, value.size()));
}

void take_attribute(int type, std::span<const std::byte> value, KernelLink& link) {
  switch (type) {
    case IFLA_IFNAME:
      link.name = attribute_text(value);
      break;
    case IFLA_MTU:
      link.mtu = attribute_number(value);
      break;
    case IFLA_MASTER:
      link.master = attribute_number(value);
      break;
    case IFLA_LINK:
      link.has_lower = attribute_number(value) != 0;
      break;
    case IFLA_ADDRESS:
      link.mac.assign(value.begin(), value.end());
      break;
    case IFLA_LINKINFO:
      for_attributes(value, 0, [&](int inner, std::span<const std::byte> one) {
        if (inner == IFLA_INFO_KIND) link.kind = attribute_text(one);
      });
      break;
    case kParentName:
      link.device = attribute_text(value);
      break;
    case kParentBus:
      link.bus = attribute_text(value);
      break;
    default:
      break;
  }
}

}  // namespace

std::optional<KernelLink> read_kernel_link(const nlmsghdr& message) {
  ifinfomsg header{};
  const std::span<const std::byte> body = body_of(message);
  const bool is_link = message.nlmsg_type == RTM_NEWLINK || message.nlmsg_type == RTM_DELLINK;
  if (!is_link || body.size() < sizeof header) return std::nullopt;
  memcpy(&header, body.data(), sizeof header);
  if (header.ifi_family != AF_UNSPEC) return std::nullopt;
  KernelLink link;
  link.index = static_cast<std::uint32_t>(header.ifi_index);
  link.flags = header.ifi_flags;
  link.frames = header.ifi_type;
  for_attributes(body, sizeof header, [&](int type, std::span<const std::byte> value) {
    take_attribute(type, value, link);
  });
  return link;
}

Result<std::vector<KernelLink>> list_kernel_links() {
  NetlinkRequest request(RTM_GETLINK, 1, ifinfomsg{}, NLM_F_DUMP);
  const std::uint32_t no_statistics = RTEXT_FILTER_SKIP_STATS;
  request.add(IFLA_EXT_MASK, std::as_bytes(std::span(&no_statistics, 1)));
  const auto listed = list_kernel(request);
  if (!listed.ok()) return listed.status();
  std::vector<KernelLink> links;
  for_messages(listed.value(), [&](const nlmsghdr& each) {
    if (auto link = read_kernel_link(each)) links.push_back(std::move(*link));
  });
  return links;
}

std::optional<KernelLink> find_kernel_link(const std::string& name) {
  const auto fd = open_netlink(0);
  if (!fd.ok()) return std::nullopt;
  NetlinkRequest request(RTM_GETLINK, 1, ifinfomsg{});
  const std::string cut = name.substr(0, IFNAMSIZ - 1);
  request.add(IFLA_IFNAME, std::as_bytes(std::span(cut.c_str(), cut.size() + 1)));
  NetlinkAnswer answer;
  const nlmsghdr* const link = ask_kernel(fd.value().get(), request, RTM_NEWLINK, answer);
  return link == nullptr ? std::nullopt : read_kernel_link(*link);
}

}  // namespace taco::harp
