#include "harp/drivers/xdp/xdp_interface.h"

#include <errno.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/own_fd.h"

namespace taco::harp {

namespace {

constexpr std::size_t kVlanTagBytes = 4;  // of a frame that comes with one
constexpr std::uint32_t kMostQueues = 64;

// The kernel is asked by name.
struct LinkFacts {
  bool is_ethernet = false;
  MacAddress mac{};
  std::size_t mtu = 0;
  std::uint32_t index = 0;
  std::uint32_t queues = 1;
  bool is_up = false;
};

ifreq request_about(const std::string& name) {
  ifreq request{};
  const std::size_t bytes = std::min(name.size(), sizeof request.ifr_name - 1);
  memcpy(request.ifr_name, name.data(), bytes);
  return request;
}

std::uint32_t receive_queues(int fd, const std::string& name) {
  ethtool_channels channels{};
  channels.cmd = ETHTOOL_GCHANNELS;
  ifreq request = request_about(name);
  request.ifr_data = reinterpret_cast<char*>(&channels);
  if (ioctl(fd, SIOCETHTOOL, &request) != 0) return 1;
  return std::clamp(channels.combined_count + channels.rx_count, 1u, kMostQueues);
}

Result<LinkFacts> facts_of(const std::string& name) {
  const OwnFd fd(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  LinkFacts facts;
  ifreq request = request_about(name);
  bool known = fd && ioctl(fd.get(), SIOCGIFINDEX, &request) == 0;
  facts.index = static_cast<std::uint32_t>(request.ifr_ifindex);
  request = request_about(name);
  known = known && ioctl(fd.get(), SIOCGIFHWADDR, &request) == 0;
  facts.is_ethernet = request.ifr_hwaddr.sa_family == ARPHRD_ETHER;
  memcpy(facts.mac.data(), request.ifr_hwaddr.sa_data, facts.mac.size());
  request = request_about(name);
  known = known && ioctl(fd.get(), SIOCGIFMTU, &request) == 0;
  facts.mtu = static_cast<std::size_t>(request.ifr_mtu);
  request = request_about(name);
  known = known && ioctl(fd.get(), SIOCGIFFLAGS, &request) == 0;
  facts.is_up = (request.ifr_flags & IFF_UP) != 0;
  if (!known) return Status(Code::kResource, name + ": " + strerror(errno));
  facts.queues = receive_queues(fd.get(), name);
  return facts;
}

}  // namespace

Result<std::unique_ptr<XdpInterface>> XdpInterface::open(const std::string& name) {
  const auto facts = facts_of(name);
  if (!facts.ok()) return facts.status();
  if (!facts.value().is_ethernet) {
    return Status(Code::kUnsupported, name + " carries no Ethernet frames");
  }
  std::unique_ptr<XdpInterface> made(new XdpInterface(name));
  made->index_ = facts.value().index;
  made->mac_ = facts.value().mac;
  made->mtu_ = facts.value().mtu;
  const auto named = [&](const Status& status) {
    return status.with_prefix("TACO_HARP_DRIVER=xdp on " + name + ": ");
  };
  auto filter = XdpFilter::create(facts.value().queues);
  if (!filter.ok()) return named(filter.status());
  made->filter_ = std::move(filter).value();
  for (std::uint32_t queue = 0; queue < facts.value().queues; ++queue) {
    auto socket =
        XdpSocket::open({made->index_, queue, made->mtu_ + kEthernetHeader + kVlanTagBytes});
    if (!socket.ok()) return named(socket.status());
    const Status added = made->filter_->add_socket(queue, socket.value()->fd());
    if (!added.ok()) return named(added);
    made->sockets_.push_back(std::move(socket).value());
  }
  const Status attached = made->filter_->attach(made->index_);
  if (!attached.ok()) return named(attached);
  TACO_LOG_INFO("harp", "xdp on %s: %s, %s, %u queues, MTU %zu", name.c_str(),
                made->filter_->mode() == XdpMode::kNative ? "native" : "generic",
                made->sender().copies() ? "copying" : "zero copy", facts.value().queues,
                made->mtu_);
  return made;
}

std::uint64_t XdpInterface::dropped() const {
  std::uint64_t total = 0;
  for (const auto& socket : sockets_) total += socket->dropped();
  return total;
}

bool XdpInterface::is_as_opened() const {
  const auto now = facts_of(name_);
  return now.ok() && now.value().index == index_ && now.value().mtu == mtu_ &&
         now.value().mac == mac_ && now.value().is_up;
}

}  // namespace taco::harp
