// Whether this machine, and this user, can have AF_XDP. Test support.
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <string>

#include "base/own_fd.h"
#include "harp/drivers/xdp/xdp_filter.h"

namespace taco::harp {

// Empty: there is.
inline std::string why_no_xdp() {
  const auto filter = XdpFilter::create();
  if (!filter.ok()) return filter.status().message();
  return OwnFd(socket(AF_XDP, SOCK_RAW | SOCK_CLOEXEC, 0)) ? "" : "this kernel has no AF_XDP";
}

#define XDP_OR_SKIP() \
  if (const std::string reason = why_no_xdp(); !reason.empty()) GTEST_SKIP() << reason

}  // namespace taco::harp
