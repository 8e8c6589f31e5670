// The kernel's rtnetlink: questions about routes, neighbours and interfaces, and its news of them.
//
// One thread a socket.
#pragma once

#include <errno.h>
#include <linux/rtnetlink.h>
#include <string.h>
#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/own_fd.h"
#include "base/status.h"

namespace taco::harp {

// A socket that nobody waits at. It hears news of `groups` (RTMGRP_*), or of nothing.
Result<OwnFd> open_netlink(std::uint32_t groups);

// A message under construction.
class NetlinkRequest {
 public:
  template <class Header>
  NetlinkRequest(std::uint16_t type, std::uint32_t sequence, const Header& header,
                 std::uint16_t flags = 0) {
    nlmsghdr& first = *reinterpret_cast<nlmsghdr*>(bytes_.data());
    first.nlmsg_len = NLMSG_LENGTH(sizeof header);
    first.nlmsg_type = type;
    first.nlmsg_flags = static_cast<std::uint16_t>(NLM_F_REQUEST | flags);
    first.nlmsg_seq = sequence;
    memcpy(NLMSG_DATA(&first), &header, sizeof header);
  }
  void add(unsigned short type, std::span<const std::byte> value);

  const nlmsghdr& header() const { return *reinterpret_cast<const nlmsghdr*>(bytes_.data()); }
  std::span<const std::byte> bytes() const { return std::span(bytes_).first(header().nlmsg_len); }

 private:
  alignas(nlmsghdr) std::array<std::byte, 256> bytes_{};
};

struct NetlinkAnswer {
  alignas(nlmsghdr) std::array<std::byte, 8192> bytes;
  int error = 0;  // errno, where there is none
};

// The kernel answers while it is asked: the answer, if it is a message of the type that is wanted,
// in `answer`; else null. One to an earlier question is passed over.
const nlmsghdr* ask_kernel(int fd, const NetlinkRequest& request, std::uint16_t wanted,
                           NetlinkAnswer& answer);

// All that a request for a list (NLM_F_DUMP) asks for, as messages in a row.
Result<std::vector<std::byte>> list_kernel(const NetlinkRequest& request);
// All addresses of interfaces (RTM_NEWADDR). They name an interface by its index; what getifaddrs()
// takes for the name of one may be a label, which an address of IPv4 may have instead ("eth0:1", or
// any other word).
Result<std::vector<std::byte>> list_kernel_addresses();

// Calls `take(message)` for each of the messages in a row.
template <class Take>
void for_messages(std::span<const std::byte> bytes, const Take& take) {
  auto left = static_cast<unsigned>(bytes.size());
  for (const auto* each = reinterpret_cast<const nlmsghdr*>(bytes.data()); NLMSG_OK(each, left);
       each = NLMSG_NEXT(each, left)) {
    take(*each);
  }
}

inline std::span<const std::byte> body_of(const nlmsghdr& header) {
  return {static_cast<const std::byte*>(NLMSG_DATA(&header)), NLMSG_PAYLOAD(&header, 0)};
}

// Calls `take(type, value)` for each attribute of a message whose own header is `header` bytes.
template <class Take>
void for_attributes(std::span<const std::byte> body, std::size_t header, const Take& take) {
  if (body.size() < NLMSG_ALIGN(header)) return;
  body = body.subspan(NLMSG_ALIGN(header));
  auto left = static_cast<int>(body.size());
  for (auto* each = reinterpret_cast<const rtattr*>(body.data()); RTA_OK(each, left);
       each = RTA_NEXT(each, left)) {
    const auto* value = reinterpret_cast<const std::byte*>(RTA_DATA(each));
    take(each->rta_type & NLA_TYPE_MASK, std::span(value, RTA_PAYLOAD(each)));
  }
}

// 0: it is none of 32 bits.
inline std::uint32_t attribute_number(std::span<const std::byte> value) {
  std::uint32_t number = 0;
  if (value.size() == sizeof number) memcpy(&number, value.data(), sizeof number);
  return number;
}

// Calls `take(message)` for what has come, up to a bound; the rest waits until the next time.
// False: some did not fit the socket's buffer (ENOBUFS), and nobody knows what has changed.
template <class Take>
bool hear_kernel(int fd, const Take& take) {
  constexpr int kMaxHeard = 64;
  NetlinkAnswer heard;
  bool all = true;
  for (int i = 0; i < kMaxHeard; ++i) {
    const ssize_t got = recv(fd, heard.bytes.data(), heard.bytes.size(), 0);
    if (got < 0 && errno == ENOBUFS) all = false;
    if (got < 0 && errno != ENOBUFS && errno != EINTR) break;
    if (got < 0) continue;
    for_messages(std::span(heard.bytes).first(static_cast<std::size_t>(got)), take);
  }
  return all;
}

}  // namespace taco::harp
