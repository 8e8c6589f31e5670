#include "harp/drivers/kernel/netlink.h"

#include <linux/netlink.h>

#include <string>
#include <utility>

#include "base/descriptors.h"

namespace taco::harp {

namespace {

// As much as the kernel tells at a time.
constexpr std::size_t kListRoom = 32'768;
// Interfaces that change meanwhile may be missing: they are listed again, so often at most.
constexpr int kListTries = 5;

struct Listing {
  std::vector<std::byte> messages;
  bool is_whole = false;  // has come to its end
  bool has_changed = false;
  int error = 0;
};

Status failed_list(int error) {
  return Status(Code::kResource, "cannot list network interfaces: " + system_error_text(error));
}

// The error that a message of its kind begins with; 0: none.
int error_in(const nlmsghdr& message) {
  int error = 0;
  if (NLMSG_PAYLOAD(&message, 0) >= sizeof error) {
    memcpy(&error, NLMSG_DATA(&message), sizeof error);
  }
  return -error;
}

void take_part(Listing& list, std::size_t from) {
  for_messages(std::span(list.messages).subspan(from), [&](const nlmsghdr& each) {
    list.has_changed |= (each.nlmsg_flags & NLM_F_DUMP_INTR) != 0;
    list.is_whole |= each.nlmsg_type == NLMSG_DONE || each.nlmsg_type == NLMSG_ERROR;
    if (list.is_whole) list.error = error_in(each);
  });
}

// The kernel tells the next part when one has been read: nobody waits.
Result<Listing> list_once(const NetlinkRequest& request) {
  const auto fd = open_netlink(0);
  if (!fd.ok()) return fd.status();
  const std::span<const std::byte> bytes = request.bytes();
  if (send(fd.value().get(), bytes.data(), bytes.size(), 0) < 0) return failed_list(errno);
  Listing list;
  while (!list.is_whole) {
    const std::size_t before = list.messages.size();
    list.messages.resize(before + kListRoom);
    const ssize_t got = recv(fd.value().get(), list.messages.data() + before, kListRoom, MSG_TRUNC);
    if (got < 0 && errno != EINTR) return failed_list(errno);
    if (got > static_cast<ssize_t>(kListRoom)) return failed_list(EMSGSIZE);
    list.messages.resize(before + static_cast<std::size_t>(got < 0 ? 0 : got));
    take_part(list, before);
  }
  if (list.error > 0) return failed_list(list.error);
  return list;
}

}  // namespace

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
  const auto fail = [&](int error) {
    answer.error = error;
    return nullptr;
  };
  if (send(fd, bytes.data(), bytes.size(), 0) < 0) return fail(errno);
  for (;;) {
    const ssize_t got = recv(fd, answer.bytes.data(), answer.bytes.size(), MSG_DONTWAIT);
    if (got < 0) return fail(errno);
    const auto* header = reinterpret_cast<const nlmsghdr*>(answer.bytes.data());
    const bool is_whole = NLMSG_OK(header, static_cast<unsigned>(got));
    if (!is_whole || header->nlmsg_seq != request.header().nlmsg_seq) continue;
    if (header->nlmsg_type == wanted) return header;
    return fail(header->nlmsg_type == NLMSG_ERROR ? error_in(*header) : EPROTO);
  }
}

Result<std::vector<std::byte>> list_kernel(const NetlinkRequest& request) {
  for (int tries = 1;; ++tries) {
    auto list = list_once(request);
    if (!list.ok()) return list.status();
    const bool is_good = !list.value().has_changed || tries == kListTries;
    if (is_good) return std::move(list.value().messages);
  }
}

Result<std::vector<std::byte>> list_kernel_addresses() {
  return list_kernel(NetlinkRequest(RTM_GETADDR, 1, ifaddrmsg{}, NLM_F_DUMP));
}

}  // namespace taco::harp
