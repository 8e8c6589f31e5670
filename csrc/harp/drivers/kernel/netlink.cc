#include "harp/drivers/kernel/netlink.h"

#include <linux/netlink.h>

#include <string>

#include "base/descriptors.h"

namespace taco::harp {

Result<OwnFd> open_netlink(std::uint32_t groups) {
  OwnFd fd(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_ROUTE));
  if (!fd) {
    return Status(Code::kResource, "cannot open a netlink socket: " + system_error_text(errno));
  }
  sockaddr_nl address{};
  address.nl_family = AF_NETLINK;
  address.nl_groups = groups;
  if (groups != 0 &&
      bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    return Status(Code::kResource, std::string("cannot bind a netlink socket: ") + strerror(errno));
  }
  return fd;
}

void NetlinkRequest::add(unsigned short type, std::span<const std::byte> value) {
  nlmsghdr& first = *reinterpret_cast<nlmsghdr*>(bytes_.data());
  auto* const attribute = reinterpret_cast<rtattr*>(bytes_.data() + NLMSG_ALIGN(first.nlmsg_len));
  attribute->rta_type = type;
  attribute->rta_len = static_cast<unsigned short>(RTA_LENGTH(value.size()));
  memcpy(RTA_DATA(attribute), value.data(), value.size());
  first.nlmsg_len =
      static_cast<std::uint32_t>(NLMSG_ALIGN(first.nlmsg_len) + RTA_ALIGN(attribute->rta_len));
}

const nlmsghdr* ask_kernel(int fd, const NetlinkRequest& request, std::uint16_t wanted,
                           NetlinkAnswer& answer) {
  const std::span<const std::byte> bytes = request.bytes();
  if (send(fd, bytes.data(), bytes.size(), 0) < 0) return nullptr;
  for (;;) {
    const ssize_t got = recv(fd, answer.bytes.data(), answer.bytes.size(), MSG_DONTWAIT);
    if (got < 0) return nullptr;
    const auto* header = reinterpret_cast<const nlmsghdr*>(answer.bytes.data());
    const bool is_whole = NLMSG_OK(header, static_cast<unsigned>(got));
    if (!is_whole || header->nlmsg_seq != request.header().nlmsg_seq) continue;
    return header->nlmsg_type == wanted ? header : nullptr;
  }
}

}  // namespace taco::harp
